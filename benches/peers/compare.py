"""Runs vitrine and its Python peers alternately on the processor and prints a Markdown table.

Every measurement is a fresh process. Ratios above 1: ours is faster (of times, theirs / ours); of memory, below 1: ours
needs less.

Run:  python compare.py --vitrine target/release/vitrine [--compile]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from importlib.metadata import version
from pathlib import Path
from statistics import median

# This process imports no torch: a child's peak of memory would begin with ours.

HERE = Path(__file__).resolve().parent
MAKE_MODEL = HERE.parents[1] / "tests" / "reference" / "make_full_size.py"
SCRIPTS = {"torch": ["torch_peer.py"], "torch.compile": ["torch_peer.py", "--compile", "--training-only"],
           "ONNX Runtime": ["onnx_peer.py"]}

# runs: what is run on each side, (model, batch, threads) or CLASSIFY; value: of those runs' figures.
Case = namedtuple("Case", "title unit peer runs value")
CLASSIFY = "classify"
VIT, SWIN, TINY = "vit_192_6_3", "swin_32", "vit_tiny_patch16_224"


def all_cases(threads):
    def train(model, batch, peer):
        return Case(f"training {model}, batch {batch}", "images/s", peer, [(model, batch, threads)],
                    lambda f: f["train_images_per_second"])

    tiny = [(TINY, 16, threads)]
    return {
        "train-vit": train(VIT, 64, "torch"),
        "train-vit-compile": train(VIT, 64, "torch.compile"),
        "train-swin": train(SWIN, 64, "torch"),
        "train-swin-compile": train(SWIN, 64, "torch.compile"),
        "train-tiny": train(TINY, 16, "torch"),
        "train-tiny-compile": train(TINY, 16, "torch.compile"),
        "infer-16": Case(f"inference {TINY}, batch 16", "images/s", "ONNX Runtime", tiny,
                         lambda f: f["infer_images_per_second"]),
        "infer-1": Case(f"inference {TINY}, batch 1", "ms", "ONNX Runtime", tiny, lambda f: f["latency_ms_batch1"]),
        "memory-vit": Case(f"peak memory, {VIT}, batch 64", "MB", "torch", [(VIT, 64, threads)],
                           lambda f: f["peak_rss_mb"]),
        "memory-tiny": Case(f"peak memory, {TINY}, batch 16", "MB", "torch", tiny, lambda f: f["peak_rss_mb"]),
        "threads": Case(f"speed-up of training {VIT}, 1 to {threads} threads", "times", "torch",
                        [(VIT, 64, 1), (VIT, 64, threads)],
                        lambda one, all: all["train_images_per_second"] / one["train_images_per_second"]),
        "classify": Case(f"classify one photo, {TINY}, start to exit", "ms", "torch", [CLASSIFY],
                         lambda f: f["wall_ms"]),
    }


def output(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"status {done.returncode} of: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_classifier(args, folder):
    """A ViT of timm with random weights as timm saves it, the same as a model file of ours, and a photo."""
    output(sys.executable, MAKE_MODEL, folder, "--only", "timm_vit_tiny")
    theirs, ours = Path(folder, "timm_vit_tiny"), Path(folder, "ours.safetensors")
    output(args.vitrine, "import", theirs, "--output", ours)
    photo = Path(folder, "photos", "photo.png")
    common = ["--format", "jsonl", "--device", "cpu", "--threads", args.threads]
    return {"vitrine": [args.vitrine, "classify", ours, photo, *common],
            "torch": [sys.executable, HERE / "classify_peer.py", theirs, photo, args.threads]}


def measure(args, who, run, classifiers):
    if run == CLASSIFY:
        start = time.perf_counter()
        answer = output(*classifiers[who])
        wall_ms = 1e3 * (time.perf_counter() - start)
        return {"wall_ms": wall_ms, "best": json.loads(answer)["predictions"][0]["index"]}
    model, batch, threads = run
    options = ["--batch-size", batch, "--steps", args.steps, "--threads", threads]
    if who != "vitrine":
        script, *more = SCRIPTS[who]
        return json.loads(output(sys.executable, HERE / script, "--model", model, *options, *more))
    file = HERE / f"{model}.toml"
    name = file if file.exists() else model
    return json.loads(output(args.vitrine, "bench", "--model", name, *options, "--device", "cpu", "--json"))


def one_round(args, cases, number, classifiers):
    """(ours, theirs) of every case. What serves several cases runs once; every second round goes backwards."""
    wanted = [(who, run) for case in cases.values() for run in case.runs for who in ("vitrine", case.peer)]
    wanted = list(dict.fromkeys(wanted))
    figures = {}
    for who, run in wanted[::-1] if number % 2 else wanted:
        figures[who, run] = measure(args, who, run, classifiers)
        print(f"round {number + 1}: {who} {run}: {figures[who, run]}", file=sys.stderr, flush=True)
    best = {f["best"] for f in figures.values() if "best" in f}
    if len(best) > 1:
        sys.exit(f"the two classifiers disagree: {best}")
    return {name: [case.value(*(figures[who, run] for run in case.runs)) for who in ("vitrine", case.peer)]
            for name, case in cases.items()}


def row(case, pairs):
    def ratio(ours, theirs):
        return theirs / ours if case.unit == "ms" else ours / theirs

    ours, theirs = map(median, zip(*pairs))
    ratios = [ratio(*pair) for pair in pairs]
    unit = " ×" if case.unit == "times" else f" {case.unit}"
    return (f"| {case.title} | {ours:.4g}{unit} | {theirs:.4g}{unit} ({case.peer}) | {ratio(ours, theirs):.2f} "
            f"| {min(ratios):.2f}–{max(ratios):.2f} |")


def main():
    names = list(all_cases(2))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vitrine", required=True, metavar="PATH", help="the program to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="CASE", choices=names, help=", ".join(names))
    parser.add_argument("--compile", action="store_true", help="the cases of torch.compile too")
    args = parser.parse_args()
    args.vitrine = os.path.abspath(args.vitrine)
    chosen = args.only or [name for name in names if args.compile or not name.endswith("-compile")]
    cases = {name: case for name, case in all_cases(args.threads).items() if name in chosen}

    with tempfile.TemporaryDirectory() as folder:
        classifiers = make_classifier(args, folder) if "classify" in cases else {}
        rounds = [one_round(args, cases, number, classifiers) for number in range(args.rounds)]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "timm", "onnxruntime"))
    print(f"{args.threads} threads, {args.rounds} rounds, {versions}\n")
    print("| case | vitrine | peer | ratio of medians | per round |\n|---|---|---|---|---|")
    for name, case in cases.items():
        print(row(case, [figures[name] for figures in rounds]))


if __name__ == "__main__":
    main()
