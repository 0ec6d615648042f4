"""Kills training at random moments, resumes it, and compares the result with that of a run that was not killed.

    python tests/reference/kill.py --vitrine target/release/vitrine [--kills 20] [--seed 0]

There are three rounds of kills: while a run begins, while it is resumed, and while a finished run is lengthened. Half
of the kills follow an interrupt by a few milliseconds, so that they hit the writing of a checkpoint. The script needs
only Python's standard library.
"""

import argparse
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time

MODEL = """image_size = 16
patch_size = 4
embed_dim = 32
depth = 2
num_heads = 2
class_token = false
pool = "mean"
dropout = 0.1
"""
RECIPE = """batch_size = 32
accumulate = 2
ema_decay = 0.99
[augmentation]
horizontal_flip = 0.5
mixup = 0.8
"""
EPOCHS, LONGER, IMAGES = 60, 80, 80


class Runs:
    def __init__(self, program, folder, dice):
        self.program, self.folder, self.dice = program, folder, dice
        (folder / "model.toml").write_text(MODEL)
        (folder / "recipe.toml").write_text(RECIPE)
        noise = random.Random(0)
        for name, shade in (("dark", 40), ("gray", 100), ("light", 160)):
            (folder / "data" / name).mkdir(parents=True)
            for number in range(IMAGES):
                pixels = bytes(shade + noise.randrange(90) for _ in range(16 * 16 * 3))
                (folder / "data" / name / f"{number}.ppm").write_bytes(b"P6 16 16 255\n" + pixels)

    def begin(self, run):
        return [
            "train", "data", "--model", "model.toml", "--recipe", "recipe.toml", "--epochs", str(EPOCHS),
            "--threads", "2", "--output", run,
        ]

    def start(self, arguments):
        return subprocess.Popen(
            [self.program, *arguments], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def whole(self, arguments):
        """Runs to the end, and returns the seconds that it took."""
        begun = time.monotonic()
        process = self.start(arguments)
        message = process.communicate()[1].decode()
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)}: status {process.returncode}\n{message}")
        return time.monotonic() - begun

    def killed(self, arguments, most):
        """Kills the program after a random time. A panic before that is a failure."""
        process = self.start(arguments)
        time.sleep(self.dice.uniform(0, most))
        if self.dice.random() < 0.5:
            process.send_signal(signal.SIGINT)
            time.sleep(self.dice.uniform(0, 0.1))
        process.kill()
        message = process.communicate()[1].decode()
        if "panicked" in message:
            raise SystemExit(f"{' '.join(arguments)}: {message}")

    def saved(self, run):
        return (self.folder / run / "last" / "current").is_file()

    def result(self, run):
        """The bytes of the model file, and the columns of metrics.csv that do not depend on time."""
        rows = (self.folder / run / "metrics.csv").read_text().splitlines()
        columns = [[v for i, v in enumerate(row.split(",")) if i not in (2, 8)] for row in rows]
        return (self.folder / run / "model.safetensors").read_bytes(), columns

    def compare(self, run, whole):
        if self.result(run) != self.result(whole):
            raise SystemExit(f"{run} and {whole} differ: look into {self.folder}")
        if not (self.folder / run / "report.html").is_file():
            raise SystemExit(f"{run} has no report")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vitrine", required=True, type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="vitrine-kill-"))
    runs = Runs(given.vitrine.resolve(), folder, random.Random(given.seed))
    took = runs.whole(runs.begin("whole"))
    print(f"a whole run takes {took:.1f} s; {folder}")

    for number in range(given.kills):
        runs.killed(runs.begin("begun"), took)
        if not runs.saved("begun"):  # nothing was saved, so the next attempt starts a new run in the same folder
            continue
        runs.whole(["train", "--resume", "begun", "--threads", "2"])
        runs.compare("begun", "whole")
        shutil.rmtree(folder / "begun")
    print(f"{given.kills} runs killed once: the same bits")

    while not runs.saved("resumed"):
        runs.killed(runs.begin("resumed"), took / 4)
    for number in range(given.kills):
        runs.killed(["train", "--resume", "resumed", "--threads", "2"], took / 4)
    runs.whole(["train", "--resume", "resumed", "--threads", "2"])
    runs.compare("resumed", "whole")
    print(f"a run killed {given.kills} times while it was resumed: the same bits")

    longer = ["--epochs", str(LONGER), "--threads", "2"]
    shutil.copytree(folder / "resumed", folder / "longer")
    took = runs.whole(["train", "--resume", "whole", *longer])
    for number in range(given.kills):
        runs.killed(["train", "--resume", "longer", *longer], took / 4)
    runs.whole(["train", "--resume", "longer", *longer])
    runs.compare("longer", "whole")
    print(f"a lengthened run killed {given.kills} times: the same bits")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
