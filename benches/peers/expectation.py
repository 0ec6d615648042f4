"""Measures runs with default settings on parts of the data sets of subsets.py, from which vitrine knows what accuracy to expect
before a run (src/train/expectation/), and chooses the numbers of its regression with a Gaussian process (curve.rs).

Each run is a line in the results file, and runs that are in it are not repeated. FOLDER may have further folders of images
with train/ and test/, which --data names with a title, such as "signs=500 signs of hands". looks.csv has what vitrine says
of the same images with other seeds, which choose other images for validation and for the look (--look SEED). The numbers are
those that make the accuracies likeliest, by all runs for other looks at their images, by runs on other images, and by runs on
images of other sources. Prints what each of these lets expect: the median, and the interval of four of five runs.

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
LOOKS = Path(__file__).with_name("looks.csv")
# As in curve.rs: the nearest accuracies to 0 and 1, and the quantile of the normal distribution that one of ten values exceeds.
NEAR, TENTH = 0.003, 1.2816
# Candidates: what is lost after one epoch, scales (up to those that still tell runs apart), the range of gains, and their noise.
SCALES = [[0.3, 0.5, 0.8, 1.2], [0.15, 0.2, 0.3, 0.5], [0.5, 1, 2]]
GRID = [[0.8, 1, 1.2, 1.5, 2], list(itertools.product(*SCALES)), [1, 1.5, 2], [0.1, 0.15, 0.2, 0.3]]


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


def events(args, name, seed, *options):
    """The events of a run, each as it comes."""
    with tempfile.TemporaryDirectory() as place:
        manifest(args.folder, name, Path(place, "images.csv"))
        command = [args.vitrine, "train", Path(place, "images.csv"), "--seed", seed, "--threads", 2, "--output", Path(place, "run"),
                   "--log-format", "json", *options]
        with subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
            for line in run.stderr:
                yield json.loads(line)
            if run.wait():
                sys.exit(f"{name}: status {run.returncode}")


def measured(args, name, time, seed):
    """A row of the results; None if vitrine has not looked at the images."""
    told = {event["event"]: event for event in events(args, name, seed, "--time", time)}
    look, data = told.get("expectation"), told["data"]
    if not look:
        return None  # too little time for a look
    return {"name": args.titles[name], "data": name, "seed": seed, "time": time, "training": data["training"],
            "classes": data["classes"], "epochs": round(look["epochs"], 2), **numbers(look), "top1": round(told["result"]["top1"], 4)}


def numbers(look):
    return {"images": look["images"], "linear_top1": round(look["linear_top1"], 4), "linear_loss": round(look["linear_loss"], 4)}


def looked(args, name, seed):
    """A row of looks.csv, from a run that is ended after the look."""
    told = events(args, name, seed, "--epochs", 1)
    look = next(event for event in told if event["event"] == "expectation")
    told.close()
    return {"data": name, "seed": seed, **numbers(look)}


def logit(share):
    share = numpy.clip(share, NEAR, 1 - NEAR)
    return numpy.log(share / (1 - share))


def column(rows, name):
    return numpy.array([float(row[name]) for row in rows])


def places(rows):
    """What a look says, as coordinates, a row for each run."""
    return numpy.stack([
        logit(column(rows, "linear_top1")),
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
    """The logarithm of the density at each run's gain."""
    mean, variance = predicted(rows, knows, *chosen)
    return -0.5 * ((gains(rows, chosen[0]) - mean) ** 2 / variance + numpy.log(variance))


def intervals(rows, knows, chosen):
    """The expected accuracy of each run in percent, and the bounds of four of five such runs."""
    mean, variance = predicted(rows, knows, *chosen)
    center = logit(column(rows, "linear_top1")) + mean - chosen[0] / numpy.sqrt(column(rows, "epochs"))
    half = TENTH * numpy.sqrt(variance)
    return [100 / (1 + numpy.exp(-value)) for value in (center, center - half, center + half)]


def report(rows, looks):
    asked = [*rows, *({**next(row for row in rows if row["data"] == look["data"]), **look} for look in looks)]
    is_look = numpy.arange(len(asked)) >= len(rows)
    is_run = numpy.broadcast_to(~is_look, (len(asked), len(asked)))
    data = numpy.array([row["data"] for row in asked])
    source = numpy.array([name.split(":")[0].split("-")[0] for name in data])
    knows = {
        "all runs": is_run,
        "other images": is_run & (data[:, None] != data[None]),
        "other sources": is_run & (source[:, None] != source[None]),
    }
    judged = {"all runs": is_look, "other images": slice(None), "other sources": slice(None)}
    chosen = max(itertools.product(*GRID), key=lambda chosen: sum(
        likelihood(asked, knows[name], chosen)[judged[name]].mean() for name in knows))
    print("LOST: {}, SCALES: {}, RANGE: {}, NOISE: {}".format(*chosen))
    found = 100 * column(asked, "top1")
    by = {name: intervals(asked, knows[name], chosen) for name in knows}
    print(f"{'':66} found" + "".join(f"{name:>19}" for name in by))
    for index, row in enumerate(asked):
        cells = (f"{top1[index]:6.1f} ({low[index]:4.1f}–{high[index]:4.1f})" for top1, low, high in by.values())
        title = f"{row['name']}, {row['time']}" + (f", look {row['seed']}" if is_look[index] else "")
        print(f"{title:66} {found[index]:5.1f} {' '.join(cells)}")
    for name, (top1, low, high) in by.items():
        within, inside = numpy.abs(top1 - found) <= 3, (low <= found) & (found <= high)
        for title, of in [("runs", ~is_look), ("other looks at their images", is_look)]:
            print(f"{title} by {name}: {100 * within[of].mean():.0f}% within 3 points, {100 * inside[of].mean():.0f}% in the interval")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="what subsets.py made")
    parser.add_argument("--vitrine", metavar="PATH", help="the program to measure; without it, the results are only fitted")
    parser.add_argument("--results", type=Path, required=True, metavar="FILE", help="a table (CSV), a line for each run")
    parser.add_argument("--times", nargs="+", default=["1m"], metavar="TIME", help="such as 90s or 2m")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="N")
    parser.add_argument("--data", nargs="+", default=list(SETS), metavar="NAME[:CLASS+CLASS[:IMAGES]][=TITLE]")
    parser.add_argument("--look", type=int, metavar="SEED", help="only look at the images, with this seed")
    args = parser.parse_args()
    args.titles = SETS | dict(name.split("=") for name in args.data if "=" in name)
    args.data = [name.split("=")[0] for name in args.data]
    if args.vitrine and args.look:
        for name in args.data:
            add(LOOKS, looked(args, name, args.look))
    elif args.vitrine:
        done = {(row["data"], row["time"], int(row["seed"])) for row in stored(args.results)}
        for name, time, seed in itertools.product(args.data, args.times, args.seeds):
            row = (name, time, seed) not in done and measured(args, name, time, seed)
            if row:
                add(args.results, row)
    report(stored(args.results), stored(LOOKS))


def stored(file):
    return list(csv.DictReader(file.open())) if file.exists() else []


def add(file, row):
    """Adds a row to a table, with a header if it is the first one."""
    is_first = not file.exists()
    with file.open("a", newline="") as table:
        writer = csv.DictWriter(table, list(row), lineterminator="\n")
        if is_first:
            writer.writeheader()
        writer.writerow(row)
    print(row, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
