"""Measures runs with default settings on parts of the data sets of subsets.py, from which vitrine knows what accuracy to expect
before a run (src/train/expectation/), and chooses the numbers of its regression with a Gaussian process (curve.rs).

Each run is a line in the results file, and runs that are in it are not repeated. FOLDER may have further folders of images
with train/ and test/, which --data names with a title, such as "signs=500 signs of hands". Prints the numbers that make the runs likeliest, each by the other
runs (those of another length on the same images among them), by those on other images, and by those on images of other
sources; then, next to each run's accuracy, what all runs and each of these let expect: the median, and the interval of four
of five runs.

Run:  python expectation.py FOLDER --vitrine target/release/vitrine --results src/train/expectation/measured.csv
"""
import argparse
import csv
import itertools
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy

# Data set, classes (all if none are named), images per class (all if there is no number), and how vitrine calls them.
SETS = {
    "cifar10": "CIFAR-10",
    "cifar10-165": "CIFAR-10 with 165 images a class",
    "cifar10-165::100": "CIFAR-10 with 100 images a class",
    "cifar10-50": "CIFAR-10 with 50 images a class",
    "cifar10-50::20": "CIFAR-10 with 20 images a class",
    "cifar10-165:cat+dog:": "165 cats and dogs each of CIFAR-10",
    "cifar10-165:airplane+automobile+ship+truck:100": "100 planes, ships, cars, and trucks each of CIFAR-10",
    "emoji": "3,000 emoji in 9 groups",
    "emoji::60": "500 emoji in 9 groups",
    "emoji-photos": "1,700 scenes with emoji in 9 groups",
    "mnist-100": "MNIST with 100 images a class",
    "mnist-100::20": "MNIST with 20 images a class",
    "shapes-128": "1,600 scenes with shapes of 8 kinds",
    "shapes-128::60": "500 scenes with shapes of 8 kinds",
}
COLUMNS = ["name", "data", "seed", "time", "training", "classes", "epochs", "images", "linear_top1", "linear_loss",
           "linear_strength", "top1"]
# As in curve.rs: the nearest accuracies to 0 and 1, and the quantile of the normal distribution that one of ten values exceeds.
NEAR, TENTH = 0.003, 1.2816
# Candidates: what is lost after one epoch, scales (up to those that still tell runs apart), the range of gains, and their noise.
SCALES = [[0.5, 0.8, 1.2], [0.5, 1, 2], [0.15, 0.2, 0.3, 0.5], [0.5, 1, 2]]
GRID = [[0.8, 1, 1.2, 1.5, 2], list(itertools.product(*SCALES)), [1, 1.5, 2], [0.15, 0.2, 0.3]]


def manifest(folder, name, into):
    """A CSV file with a part of a data set: some classes, and so many training images of each."""
    data, classes, images = (name.split(":") + ["", ""])[:3]
    chosen = set(classes.split("+")) if classes else None
    with open(into, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "split"])
        for split in ["train", "test"]:
            for of_class in sorted((folder / data / split).iterdir()):
                if chosen and of_class.name not in chosen:
                    continue
                files = sorted(of_class.iterdir())
                if split == "train" and images:
                    random.Random(of_class.name).shuffle(files)
                    files = files[:int(images)]
                rows.writerows([file.resolve(), of_class.name, split] for file in files)


def measured(args, name, time, seed):
    """A row of the results; None if vitrine has not looked at the images."""
    with tempfile.TemporaryDirectory() as place:
        manifest(args.folder, name, Path(place, "images.csv"))
        command = [args.vitrine, "train", Path(place, "images.csv"), "--time", time, "--seed", str(seed), "--threads", "2",
                   "--output", Path(place, "run"), "--log-format", "json"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr}")
        events = {event["event"]: event for event in map(json.loads, done.stderr.splitlines())}
    look, data = events.get("expectation"), events["data"]
    if not look:
        return None  # too little time for a look
    return {"name": args.titles[name], "data": name, "seed": seed, "time": time, "training": data["training"], "classes": data["classes"],
            "epochs": round(look["epochs"], 2), "images": look["images"], "linear_top1": round(look["linear_top1"], 4),
            "linear_loss": round(look["linear_loss"], 4),
            "linear_strength": f"{look['linear_strength']:.3g}", "top1": round(events["result"]["top1"], 4)}


def logit(share):
    share = numpy.clip(share, NEAR, 1 - NEAR)
    return numpy.log(share / (1 - share))


def column(rows, name):
    return numpy.array([float(row[name]) for row in rows])


def places(rows):
    """What a look says, as coordinates, a row for each run."""
    return numpy.stack([
        logit(column(rows, "linear_top1")),
        numpy.log10(numpy.clip(column(rows, "linear_strength"), 1e-3, 10)),
        column(rows, "linear_loss") / numpy.log(column(rows, "classes")),
        numpy.log(column(rows, "training")),
    ], axis=1)


def gains(rows, lost):
    """How much better than the linear classifiers the runs would be after many epochs, as differences of logits."""
    return logit(column(rows, "top1")) - logit(column(rows, "linear_top1")) + lost / numpy.sqrt(column(rows, "epochs"))


def predicted(rows, knows, lost, scales, span, noise):
    """The mean and the variance of each run's gain; knows[i, j] says whether run i may know run j."""
    values, at = gains(rows, lost), places(rows) / numpy.array(scales)
    covariances = span**2 * numpy.exp(-0.5 * ((at[:, None] - at[None]) ** 2).sum(2))
    mean, variance = numpy.zeros(len(rows)), numpy.zeros(len(rows))
    for known in numpy.unique(knows, axis=0):
        asked = (knows == known).all(1)
        inverse = numpy.linalg.inv(covariances[numpy.ix_(known, known)] + noise**2 * numpy.eye(known.sum()))
        center = (inverse @ values[known]).sum() / inverse.sum()
        alike = covariances[numpy.ix_(asked, known)]
        mean[asked] = center + alike @ inverse @ (values[known] - center)
        variance[asked] = span**2 + noise**2 - (alike @ inverse * alike).sum(1)
    return mean, variance


def likelihood(rows, knows, chosen):
    """The mean logarithm of the density at each run's gain."""
    mean, variance = predicted(rows, knows, *chosen)
    return -0.5 * numpy.mean((gains(rows, chosen[0]) - mean) ** 2 / variance + numpy.log(variance))


def intervals(rows, knows, chosen):
    """The expected accuracy of each run in percent, and the bounds of four of five such runs."""
    mean, variance = predicted(rows, knows, *chosen)
    center = logit(column(rows, "linear_top1")) + mean - chosen[0] / numpy.sqrt(column(rows, "epochs"))
    half = TENTH * numpy.sqrt(variance)
    return [100 / (1 + numpy.exp(-value)) for value in (center, center - half, center + half)]


def report(rows):
    data = numpy.array([row["data"] for row in rows])
    source = numpy.array([name.split(":")[0].split("-")[0] for name in data])
    knows = {
        "all": numpy.ones((len(rows), len(rows)), dtype=bool),
        "other runs": ~numpy.eye(len(rows), dtype=bool),
        "other images": data[:, None] != data[None],
        "other sources": source[:, None] != source[None],
    }
    chosen = max(itertools.product(*GRID), key=lambda chosen: sum(
        likelihood(rows, knows[name], chosen) for name in knows if name != "all"))
    print("LOST: {}, SCALES: {}, RANGE: {}, NOISE: {}".format(*chosen))
    found = 100 * column(rows, "top1")
    by = {name: intervals(rows, knows[name], chosen) for name in knows}
    print(f"{'':60} found" + "".join(f"{name:>19}" for name in by))
    for index, row in enumerate(rows):
        cells = (f"{top1[index]:6.1f} ({low[index]:4.1f}–{high[index]:4.1f})" for top1, low, high in by.values())
        print(f"{row['name'] + ', ' + row['time']:60} {found[index]:5.1f} {' '.join(cells)}")
    for name, (top1, low, high) in by.items():
        within, inside = numpy.abs(top1 - found) <= 3, (low <= found) & (found <= high)
        print(f"by {name}: {100 * within.mean():.0f}% within 3 points, {100 * inside.mean():.0f}% within the interval")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="what subsets.py made")
    parser.add_argument("--vitrine", metavar="PATH", help="the program to measure; without it, the results are only fitted")
    parser.add_argument("--results", type=Path, required=True, metavar="FILE", help="a table (CSV), a line for each run")
    parser.add_argument("--times", nargs="+", default=["1m"], metavar="TIME", help="such as 90s or 2m")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="N")
    parser.add_argument("--data", nargs="+", default=list(SETS), metavar="NAME[:CLASS+CLASS[:IMAGES]][=TITLE]")
    args = parser.parse_args()
    args.titles = SETS | dict(name.split("=") for name in args.data if "=" in name)
    args.data = [name.split("=")[0] for name in args.data]
    rows = list(csv.DictReader(args.results.open())) if args.results.exists() else []
    done = {(row["data"], row["time"], int(row["seed"])) for row in rows}
    if not rows:
        args.results.write_text(",".join(COLUMNS) + "\n")
    wanted = [(name, time, seed) for seed in args.seeds for time in args.times for name in args.data] if args.vitrine else []
    for run in wanted:
        if run in done:
            continue
        row = measured(args, *run)
        if not row:
            print(f"{run}: vitrine has not looked at the images, which takes more time", file=sys.stderr, flush=True)
            continue
        rows.append(row)
        with args.results.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)
        print(f"{run}: {row['top1']}", file=sys.stderr, flush=True)
    report(rows)


if __name__ == "__main__":
    main()
