"""Makes the data sets that judge.py compares vitrine and its peers on, deterministically by seed.

From a folder with cifar10.tar.gz and emoji.tar.gz (archives of train/CLASS/* and test/CLASS/*), mnist/ (the IDX
files), and cifar-10-batches-bin/ (the published CIFAR-10): CIFAR-10 whole, with few images per class, imbalanced, and
as published; MNIST whole and with 100 images per class; emoji, and in scenes of 300 pixels; and drawn shapes with the
imperfections of photographs (drawing.py). A data set that exists already is left unchanged. The published
CIFAR-10 is left out if it is not in the folder and --only does not name it.

Run:  python subsets.py OUTPUT --sources FOLDER
"""
import argparse
import io
import os
import random
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

import drawing
import images

CIFAR10 = "cifar10.tar.gz"
PUBLISHED_CIFAR10 = "cifar-10-batches-bin"  # what cifar-10-binary.tar.gz contains
EMOJI = "emoji.tar.gz"
MNIST = "mnist"
RAREST, MOST_FREQUENT = 20, 400  # images per class of the imbalanced set


def archive(path):
    """{split: {label: [(name, bytes)]}} of an archive with .../SPLIT/LABEL/NAME, sorted by name."""
    splits = {"train": {}, "test": {}}
    with tarfile.open(path) as members:
        for member in members:
            *_, split, label, name = ["", "", "", *member.name.split("/")]
            if member.isfile() and split in splits:
                splits[split].setdefault(label, []).append((name, members.extractfile(member).read()))
    if not all(splits.values()):
        sys.exit(f"{path}: no train/CLASS/IMAGE and test/CLASS/IMAGE in it")
    return {split: {label: sorted(files) for label, files in sorted(labels.items())}
            for split, labels in splits.items()}


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def mnist(folder):
    """MNIST as `archive` gives it."""
    splits = {}
    for split, prefix in [("train", "train"), ("test", "t10k")]:
        pixels, labels = images.idx_split(folder, prefix)
        splits[split] = {str(digit): [(f"{i:05}.png", png(pixels[i])) for i in np.flatnonzero(labels == digit)]
                         for digit in range(10)}
    return splits


def published_cifar10(folder):
    """CIFAR-10 as published, every image a PNG, as `archive` gives it."""
    names = (folder / "batches.meta.txt").read_text().split()
    splits = {}
    for split, pattern in [("train", "data_batch_*.bin"), ("test", "test_batch.bin")]:
        records = np.concatenate([np.fromfile(file, np.uint8) for file in sorted(folder.glob(pattern))])
        records = records.reshape(-1, 1 + 3 * 32 * 32)
        pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        splits[split] = {name: [(f"{i:05}.png", png(pixels[i])) for i in np.flatnonzero(records[:, 0] == label)]
                         for label, name in enumerate(names)}
    return splits


def some(files, count, *seed):
    """Draws `count` of the files. With the same seed, a smaller draw is a subset of a larger one."""
    if count > len(files):
        sys.exit(f"{seed[-1]}: {count} images asked for, {len(files)} there")
    shuffled = sorted(files)
    random.Random("/".join(map(str, seed))).shuffle(shuffled)
    return sorted(shuffled[:count])


def subset(splits, counts, args):
    """Training images by class, `counts` of them, and --test-per-class test images of each."""
    train = {label: some(files, counts[label], args.seed, "train", label) for label, files in splits["train"].items()}
    test = {label: some(files, args.test_per_class, args.seed, "test", label)
            for label, files in splits["test"].items()}
    return {"train": train, "test": test}


def balanced(splits, count, args):
    return subset(splits, dict.fromkeys(splits["train"], count), args)


def imbalanced(splits, args):
    """Counts in a geometric series, in an order that depends on the seed."""
    labels = sorted(splits["train"])
    random.Random(f"{args.seed}/imbalanced").shuffle(labels)
    ratio = (MOST_FREQUENT / RAREST) ** (1 / (len(labels) - 1))
    return subset(splits, {label: round(RAREST * ratio**rank) for rank, label in enumerate(labels)}, args)


def shapes(args, side):
    def split(name, count):
        return {label: [(f"{i:04}.jpg", drawing.photograph(label, f"{args.seed}/{name}/{label}/{i}", side))
                        for i in range(count)] for label in drawing.SHAPES}

    return {"train": split("train", args.shapes_train), "test": split("test", args.shapes_test)}


def emoji_photos(splits, args):
    """Every emoji of the test split and up to --photos-train a class of the training split, each in a scene of its own."""
    def split(name, largest):
        return {label: [(f"{Path(file).stem}.jpg", drawing.scene(content, f"{args.seed}/{name}/{label}/{file}"))
                        for file, content in some(files, min(largest, len(files)), args.seed, name, label)]
                for label, files in splits[name].items()}

    return {"train": split("train", args.photos_train), "test": split("test", sys.maxsize)}


def write(splits, folder):
    for split, labels in splits.items():
        for label, files in labels.items():
            place = folder / split / label
            place.mkdir(parents=True)
            for name, content in files:
                (place / name).write_bytes(content)


def copy_idx(source, folder):
    folder.mkdir(parents=True)
    for file in sorted(source.glob("*-ubyte*")):
        shutil.copyfile(file, folder / file.name)


def makers(sources, args):
    """The functions that make the data sets. Sources that several of them need are read once."""
    read = {}

    def once(reader, name):
        if name not in read:
            read[name] = reader(sources / name)
        return read[name]

    def folders(make):
        return lambda folder: write(make(), folder)

    return {
        "cifar10-50": folders(lambda: balanced(once(archive, CIFAR10), 50, args)),
        "cifar10-165": folders(lambda: balanced(once(archive, CIFAR10), 165, args)),
        "cifar10-imbalanced": folders(lambda: imbalanced(once(archive, CIFAR10), args)),
        "emoji": folders(lambda: archive(sources / EMOJI)),
        "mnist-100": folders(lambda: balanced(once(mnist, MNIST), 100, args)),
        "mnist": lambda folder: copy_idx(sources / MNIST, folder),
        "shapes-128": folders(lambda: shapes(args, 128)),
        "shapes-256": folders(lambda: shapes(args, 256)),
        "emoji-photos": folders(lambda: emoji_photos(once(archive, EMOJI), args)),
        "cifar10": folders(lambda: once(archive, CIFAR10)),
        "cifar10-published": folders(lambda: published_cifar10(sources / PUBLISHED_CIFAR10)),
    }


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path, help="folder to make, with a folder per data set")
    parser.add_argument("--sources", default=os.environ.get("VITRINE_JUDGE_SOURCES"), metavar="FOLDER",
                        help="holds cifar10.tar.gz, emoji.tar.gz, mnist/, and cifar-10-batches-bin/ "
                             "(else: VITRINE_JUDGE_SOURCES)")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(makers(Path(), None)),
                        help=", ".join(makers(Path(), None)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test-per-class", type=int, default=200, metavar="N", help="of the subsets (200)")
    parser.add_argument("--photos-train", type=int, default=200, metavar="N", help="at most, per class (200)")
    parser.add_argument("--shapes-train", type=int, default=200, metavar="N", help="per class (200)")
    parser.add_argument("--shapes-test", type=int, default=100, metavar="N", help="per class (100)")
    args = parser.parse_args()
    if not args.sources and not (args.only and set(args.only) <= {"shapes-128", "shapes-256"}):
        parser.error("say with --sources where the archives are")
    return args


def main():
    args = arguments()
    sources = Path(args.sources or "")
    left_out = set() if args.only or (sources / PUBLISHED_CIFAR10).exists() else {"cifar10-published"}
    for name, make in makers(sources, args).items():
        folder = args.output / name
        if folder.exists() or args.only and name not in args.only or name in left_out:
            continue
        part = folder.with_name(f"{name}.part")  # renamed when it is complete
        shutil.rmtree(part, ignore_errors=True)
        make(part)
        part.rename(folder)
        print(folder, flush=True)


if __name__ == "__main__":
    main()
