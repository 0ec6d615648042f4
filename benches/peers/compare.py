"""Runs vitrine and its Python peers alternately on the CPU and prints a Markdown table.

Every measurement is a fresh process. A ratio of times (theirs / ours) above 1 means that vitrine is faster, a ratio of
memory below 1 that it needs less. Medians are over all steps of all rounds. The table also has the medians of each
round and the fastest steps, which other programs on the machine disturb least.

Run:  python compare.py --vitrine target/release/vitrine [--compile]
"""
import argparse
import csv
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import namedtuple
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median

# This process does not import torch: a child process inherits the peak of its parent's memory.

HERE = Path(__file__).resolve().parent
MAKE_MODEL = HERE.parents[1] / "tests" / "reference" / "make_full_size.py"
SCRIPTS = {"torch": ["torch_peer.py"], "torch.compile": ["torch_peer.py", "--compile", "--training-only"],
           "ONNX Runtime": ["onnx_peer.py"]}

# runs: the runs of each side, (model, batch, threads), CLASSIFY, or EPOCH. Each run gives lists of samples by name.
# `value` computes a figure from them with `pick`, which reduces a list to a number: its median or its minimum.
Case = namedtuple("Case", "title unit peer runs value")
Inference = namedtuple("Inference", "model threads")  # of a batch of 16 and of one image, by weights as timm stores them
CLASSIFY, EPOCH = "classify", "epoch"
PICO, PICO_BATCH, IMAGES_A_CLASS, EPOCHS = "vit_pico_patch4_32", 64, 400, 3
LARGE = {"small": "vit_small_patch16_224", "dinov2": "vit_small_patch14_dinov2", "base": "vit_base_patch16_224"}
HYBRID, VIT, SWIN, TINY = "hybrid_micro_patch8_32", "vit_192_6_3", "swin_32", "vit_tiny_patch16_224"


def all_cases(threads):
    def train(model, batch, peer):
        return Case(f"training {model}, batch {batch}", "images/s", peer, [(model, batch, threads)],
                    lambda pick, f: 1e3 * batch / pick(f["train"]))

    def infer(model, batch):
        run = [Inference(model, threads)]
        if batch == 1:
            return Case(f"inference {model}, batch 1", "ms", "ONNX Runtime", run, lambda pick, f: pick(f["infer_batch1"]))
        return Case(f"inference {model}, batch {batch}", "images/s", "ONNX Runtime", run,
                    lambda pick, f: 1e3 * batch / pick(f["infer"]))

    tiny = [(TINY, 16, threads)]
    large = {f"infer-{short}-{batch}": infer(model, batch) for short, model in LARGE.items() for batch in (16, 1)}
    return {
        **large,
        "train-hybrid": train(HYBRID, 64, "torch"),
        "train-vit": train(VIT, 64, "torch"),
        "train-vit-compile": train(VIT, 64, "torch.compile"),
        "train-swin": train(SWIN, 64, "torch"),
        "train-swin-compile": train(SWIN, 64, "torch.compile"),
        "train-tiny": train(TINY, 16, "torch"),
        "train-tiny-compile": train(TINY, 16, "torch.compile"),
        "infer-16": Case(f"inference {TINY}, batch 16", "images/s", "ONNX Runtime", tiny,
                         lambda pick, f: 1e3 * 16 / pick(f["infer"])),
        "infer-1": Case(f"inference {TINY}, batch 1", "ms", "ONNX Runtime", tiny,
                        lambda pick, f: pick(f["infer_batch1"])),
        "memory-vit": Case(f"peak memory, {VIT}, batch 64", "MB", "torch", [(VIT, 64, threads)],
                           lambda pick, f: median(f["peak_rss_mb"])),
        "memory-tiny": Case(f"peak memory, {TINY}, batch 16", "MB", "torch", tiny,
                            lambda pick, f: median(f["peak_rss_mb"])),
        "threads": Case(f"speed-up of training {VIT}, 1 to {threads} threads", "times", "torch",
                        [(VIT, 64, 1), (VIT, 64, threads)],
                        lambda pick, one, all: pick(one["train"]) / pick(all["train"])),
        "classify": Case(f"classify one photo, {TINY}, start to exit", "ms", "torch", [CLASSIFY],
                         lambda pick, f: pick(f["wall_ms"])),
        "epoch": Case(f"training {PICO} on CIFAR-10, default augmentation", "images/s", "bare steps", [EPOCH],
                      lambda pick, f: 1e3 / pick(f["ms_per_image"])),
    }


def output(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"status {done.returncode} of: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_classifier(args, folder):
    """Writes a ViT with random weights as timm saves it and as a model file of vitrine, and a photo."""
    output(sys.executable, MAKE_MODEL, folder, "--only", "timm_vit_tiny")
    theirs, ours = Path(folder, "timm_vit_tiny"), Path(folder, "ours.safetensors")
    output(args.vitrine, "import", theirs, "--output", ours)
    photo = Path(folder, "photos", "photo.png")
    common = ["--format", "jsonl", "--device", "cpu", "--threads", args.threads]
    return {"vitrine": [args.vitrine, "classify", ours, photo, *common],
            "torch": [sys.executable, HERE / "classify_peer.py", theirs, photo, args.threads]}


def extract_images(archive, folder):
    """The first images of each class of CIFAR-10's training split, as CLASS/*."""
    taken = {}
    with tarfile.open(archive) as members:
        for member in members:
            *_, split, label, name = ["", "", ""] + member.name.split("/")
            if member.isfile() and split == "train" and taken.get(label, 0) < IMAGES_A_CLASS:
                taken[label] = taken.get(label, 0) + 1
                path = Path(folder, label, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(members.extractfile(member).read())
    if not taken:
        sys.exit(f"{archive}: no train/CLASS/IMAGE in it")


def epochs(args, images):
    """Milliseconds per image of each epoch of the training loop except the first."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        output(args.vitrine, "train", images, "--model", PICO, "--batch-size", PICO_BATCH, "--epochs", EPOCHS,
               "--threads", args.threads, "--device", "cpu", "--output", run)
        with open(run / "metrics.csv") as file:
            return [1e3 / float(row["images_per_second"]) for row in csv.DictReader(file)][1:]


def bare_epoch(args):
    """Milliseconds per image of about as many steps as an epoch has, without the training loop."""
    steps = IMAGES_A_CLASS * 10 // PICO_BATCH
    bench = json.loads(output(args.vitrine, "bench", "--model", PICO, "--batch-size", PICO_BATCH, "--steps", steps,
                              "--threads", args.threads, "--device", "cpu", "--json"))
    return [mean(bench["step_ms"]["train"]) / PICO_BATCH]


def measure(args, who, run, prepared):
    """Lists of samples by name."""
    if run == CLASSIFY:
        start = time.perf_counter()
        answer = output(*prepared[who])
        wall_ms = 1e3 * (time.perf_counter() - start)
        return {"wall_ms": [wall_ms], "best": [json.loads(answer)["predictions"][0]["index"]]}
    if run == EPOCH:
        return {"ms_per_image": epochs(args, prepared["images"]) if who == "vitrine" else bare_epoch(args)}
    if isinstance(run, Inference):
        return inference(args, who, run, prepared)
    model, batch, threads = run
    options = ["--batch-size", batch, "--steps", args.steps, "--threads", threads]
    if who != "vitrine":
        script, *more = SCRIPTS[who]
        answer = json.loads(output(sys.executable, HERE / script, "--model", model, *options, *more))
    else:
        file = HERE / f"{model}.toml"
        name = file if file.exists() else model
        answer = json.loads(output(args.vitrine, "bench", "--model", name, *options, "--device", "cpu", "--json"))
    return {**answer["step_ms"], "peak_rss_mb": [answer["peak_rss_mb"]]}


def stored(folder, model):
    """A folder with a model as timm saves it, with random weights."""
    path = Path(folder, model)
    output(sys.executable, HERE / SCRIPTS["torch"][0], "--model", model, "--save", path)
    return path


def inference(args, who, run, prepared):
    options = ["--batch-size", 16, "--steps", args.steps, "--threads", run.threads]
    if who == "vitrine":
        command = [args.vitrine, "bench", "--model", prepared[run.model], "--inference-only", "--device", "cpu", "--json"]
    else:
        command = [sys.executable, HERE / SCRIPTS[who][0], "--model", run.model]
    return json.loads(output(*command, *options))["step_ms"]


def one_round(args, cases, number, prepared):
    """The samples of all runs that the cases need, by side and run. A run that several cases need runs once. Every
    second round is in reverse order."""
    wanted = [(who, run) for case in cases.values() for run in case.runs for who in ("vitrine", case.peer)]
    wanted = list(dict.fromkeys(wanted))
    figures = {}
    for who, run in wanted[::-1] if number % 2 else wanted:
        figures[who, run] = measure(args, who, run, prepared)
        shown = {name: " ".join(f"{sample:.4g}" for sample in samples) for name, samples in figures[who, run].items()}
        print(f"round {number + 1}: {who} {run}: {shown}", file=sys.stderr, flush=True)
    best = {f["best"][0] for f in figures.values() if "best" in f}
    if len(best) > 1:
        sys.exit(f"the two classifiers disagree: {best}")
    return figures


def row(case, rounds):
    def pair(figures, pick):
        """(ours, theirs)"""
        return [case.value(pick, *(figures[who, run] for run in case.runs)) for who in ("vitrine", case.peer)]

    def ratio(ours, theirs):
        return theirs / ours if case.unit == "ms" else ours / theirs

    together = {key: {name: [sample for figures in rounds for sample in figures[key][name]] for name in rounds[0][key]}
                for key in rounds[0]}
    ours, theirs = pair(together, median)
    our_best, their_best = pair(together, min)
    ratios = [ratio(*pair(figures, median)) for figures in rounds]
    unit = " ×" if case.unit == "times" else f" {case.unit}"
    return (f"| {case.title} | {ours:.4g}{unit} | {theirs:.4g}{unit} ({case.peer}) | {ratio(ours, theirs):.2f} "
            f"| {min(ratios):.2f}–{max(ratios):.2f} "
            f"| {our_best:.4g} : {their_best:.4g} = {ratio(our_best, their_best):.2f} |")


def main():
    names = list(all_cases(2))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vitrine", required=True, metavar="PATH", help="the program to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="CASE", choices=names, help=", ".join(names))
    parser.add_argument("--compile", action="store_true", help="the cases of torch.compile too")
    parser.add_argument("--cifar10", metavar="TAR.GZ", help="CIFAR-10 as {train,test}/CLASS/*, for the case epoch")
    args = parser.parse_args()
    args.vitrine = os.path.abspath(args.vitrine)
    if "epoch" in (args.only or []) and not args.cifar10:
        parser.error("the case epoch needs --cifar10")
    left_out = {name for name in names if name.endswith("-compile") and not args.compile}
    chosen = args.only or [name for name in names if name not in left_out and (name != "epoch" or args.cifar10)]
    cases = {name: case for name, case in all_cases(args.threads).items() if name in chosen}

    with tempfile.TemporaryDirectory() as folder:
        prepared = make_classifier(args, folder) if "classify" in cases else {}
        if "epoch" in cases:
            prepared["images"] = Path(folder, "images")
            extract_images(args.cifar10, prepared["images"])
        prepared |= {run.model: stored(folder, run.model) for case in cases.values() for run in case.runs
                     if isinstance(run, Inference)}
        rounds = [one_round(args, cases, number, prepared) for number in range(args.rounds)]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "timm", "onnxruntime"))
    print(f"{args.threads} threads, {args.rounds} rounds, {versions}\n")
    print("| case | vitrine | peer | ratio of medians | per round | fastest steps |\n|---|---|---|---|---|---|")
    for case in cases.values():
        print(row(case, rounds))


if __name__ == "__main__":
    main()
