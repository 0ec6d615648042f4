"""Runs vitrine, two ResNets, and airbench94 in turn on the data sets of subsets.py, for the same time, and prints a
Markdown table.

Vitrine's only options are data, time, threads, and a seed. --variants FILE adds columns for vitrine with more options,
such as the architectures, recipes, and sizes of variants.toml. Each run is a line in the results file. Runs that are in
the file are not repeated, so an interrupted comparison continues, and more seeds can be added.

Run:  python judge.py FOLDER --vitrine target/release/vitrine --results results.jsonl --times 1m 5m --seeds 1 2 3
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import namedtuple
from pathlib import Path
from statistics import mean, stdev

# This process does not import torch, so that it takes no memory away from the measured programs.

HERE = Path(__file__).resolve().parent
DATA = ["cifar10", "cifar10-published", "cifar10-50", "cifar10-165", "cifar10-imbalanced", "mnist", "mnist-100",
        "emoji", "shapes-128", "shapes-256", "emoji-photos"]
NO_FLIP = {"mnist", "mnist-100"}  # digits, which must not be mirrored
COLUMNS = {"vitrine": "vitrine", "resnet-18": "ResNet-18", "resnet-1m": "ResNet-1M", "airbench94": "airbench94"}

PEERS = set(COLUMNS) - {"vitrine"}

Run = namedtuple("Run", "data time seed who")


def finished(*command):
    """A command that has ended well, with what it wrote."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"status {done.returncode} of: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done


def ours(args, run, options):
    with tempfile.TemporaryDirectory() as folder:
        start, place = time.perf_counter(), Path(folder, "run")
        done = finished(args.vitrine, "train", args.folder / run.data, "--time", run.time, "--threads", args.threads,
                        "--seed", run.seed, "--output", place, "--log-format", "json", *options)
        wall = time.perf_counter() - start
        test = json.loads((place / "metrics.json").read_text())["test"]
    events = {event["event"]: event for event in map(json.loads, done.stderr.splitlines())}
    return {"accuracy": test["top1"], "macro_f1": test["macro_f1"], "wall_seconds": round(wall, 2),
            "training": events["data"]["training"], "expectation": events.get("expectation")}


def theirs(args, run):
    options = ["--no-flip"] if run.data in NO_FLIP else []
    if args.hold_out:
        options += ["--hold-out"]
    if args.precision:
        options += ["--precision", args.precision]
    start = time.perf_counter()
    answer = finished(sys.executable, HERE / "folder.py", args.folder / run.data, "--model", run.who, "--time", run.time,
                    "--threads", args.threads, "--seed", run.seed, *options).stdout
    return {**json.loads(answer), "hold_out": args.hold_out, "wall_seconds": round(time.perf_counter() - start, 2)}


def stored(file, hold_out):
    """The results so far, by run; of the networks in PyTorch, those that hold out images, or those that do not."""
    if not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [line for line in lines if line["who"] not in PEERS or line.get("hold_out", False) == hold_out]
    return {Run(*(line[key] for key in Run._fields)): line for line in lines}


def wanted(args):
    """The runs in order: all contestants on the same data in turn, in reverse order for every second seed."""
    runs = []
    for index, seed in enumerate(args.seeds):
        turn = args.only[::-1] if index % 2 else args.only
        runs += [Run(data, length, seed, who) for data in args.data for length in args.times for who in turn]
    return runs


def measure(args, results):
    for run in wanted(args):
        if run in results:
            continue
        result = ours(args, run, args.variants[run.who]) if run.who in args.variants else theirs(args, run)
        results[run] = {**result, **run._asdict(), "threads": args.threads}
        with open(args.results, "a") as file:
            file.write(json.dumps(results[run]) + "\n")
        print(f"{run.data} {run.time} seed {run.seed} {run.who}: {100 * result['accuracy']:.2f}%", file=sys.stderr,
              flush=True)


def cell(values):
    """The mean in percent, with the deviation between seeds if there are several."""
    if not values:
        return ""
    deviation = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{deviation}"


def table(args, results):
    def values(data, length, who):
        return [results[run][args.metric] for seed in args.seeds if (run := Run(data, length, seed, who)) in results]

    yield f"| data | time | {' | '.join(COLUMNS.get(who, who) for who in args.only)} |"
    yield "|---|---|" + "---|" * len(args.only)
    for data in args.data:
        for length in args.times:
            cells = [cell(values(data, length, who)) for who in args.only]
            if any(cells):
                yield f"| {data} | {length} | {' | '.join(cells)} |"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="what subsets.py made")
    parser.add_argument("--vitrine", metavar="PATH", help="the program to measure")
    parser.add_argument("--results", type=Path, required=True, metavar="FILE", help="JSON lines, one per run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N")
    parser.add_argument("--times", nargs="+", default=["1m", "5m"], metavar="TIME", help="such as 90s, 2m or 1h")
    parser.add_argument("--data", nargs="+", choices=DATA, metavar="NAME",
                        help=f"by default those that are there of {', '.join(DATA)}")
    parser.add_argument("--only", nargs="+", metavar="COLUMN",
                        help=", ".join(COLUMNS) + ", and the variants; by default all of them")
    parser.add_argument("--variants", type=Path, metavar="FILE", help="TOML: NAME = [OPTION, ...] of vitrine train")
    parser.add_argument("--metric", choices=["accuracy", "macro_f1"], default="accuracy", help="what the table shows")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["float32", "bfloat16"],
                        help="of the networks in PyTorch, instead of the fastest")
    parser.add_argument("--hold-out", action="store_true",
                        help="the networks in PyTorch train on as many images as vitrine, which keeps the others for validation")
    parser.add_argument("--table-only", action="store_true", help="run nothing, print what is in the results file")
    args = parser.parse_args()
    variants = tomllib.loads(args.variants.read_text()) if args.variants else {}
    if taken := set(variants) & set(COLUMNS):
        parser.error(f"{args.variants}: {', '.join(taken)}: a variant needs a name of its own")
    args.variants = {"vitrine": [], **variants}
    args.data = args.data or [name for name in DATA if (args.folder / name).is_dir()]
    args.only = args.only or [*COLUMNS, *variants]
    if unknown := [who for who in args.only if who not in {*COLUMNS, *variants}]:
        parser.error(f"--only {' '.join(unknown)}: there is no such column")
    if not args.table_only:
        if set(args.only) & set(args.variants) and not args.vitrine:
            parser.error("say with --vitrine where the program is")
        if missing := [name for name in args.data or DATA if not (args.folder / name).is_dir()]:
            parser.error(f"{args.folder}: no {', '.join(missing)} in it; make them with subsets.py")
        args.vitrine = args.vitrine and os.path.abspath(args.vitrine)
    return args


def main():
    args = arguments()
    results = stored(args.results, args.hold_out)
    if not args.table_only:
        measure(args, results)
    print("\n".join(table(args, results)))


if __name__ == "__main__":
    main()
