"""Labeled images from folders of classes or IDX files, as arrays of one size."""
import gzip
import statistics
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

# images: [count, height, width, channels] of bytes; labels: [count]
Split = namedtuple("Split", "images labels")
TEST_SPLITS = ["test", "val", "valid", "validation"]  # the first one that exists is used
LARGEST_SIDE = 96  # larger images are scaled down to it


def idx(path):
    """The array in an IDX file of bytes, gzipped or not."""
    raw = path.read_bytes() if path.exists() else gzip.decompress(path.with_name(path.name + ".gz").read_bytes())
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">u4", dimensions, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()


def idx_split(folder, prefix):
    """The images and labels of one split of MNIST."""
    return idx(folder / f"{prefix}-images-idx3-ubyte"), idx(folder / f"{prefix}-labels-idx1-ubyte").astype(np.int64)


def usual_side(files):
    """The median of the shorter sides of some of the images, at most LARGEST_SIDE."""
    sides = []
    for file in files[:: max(1, len(files) // 100)]:
        with Image.open(file) as image:
            sides.append(min(image.size))
    return min(int(statistics.median(sides)), LARGEST_SIDE)


def are_gray(files):
    def is_gray(file):
        with Image.open(file) as image:
            return image.mode in ("1", "L", "LA")

    return all(is_gray(file) for file in files[:: max(1, len(files) // 100)])


def decode(file, side, mode):
    """One image, its middle square scaled to the side. Alpha is dropped, as torchvision's loader of folders does."""
    with Image.open(file) as image:
        image = ImageOps.exif_transpose(image).convert(mode)
        if image.size != (side, side):
            image = ImageOps.fit(image, (side, side), Image.Resampling.BICUBIC)
        return np.asarray(image).reshape(side, side, -1)


def class_files(folder):
    """{class: files} of one split."""
    classes = sorted(place.name for place in folder.iterdir() if place.is_dir())
    return {name: sorted(file for file in (folder / name).iterdir() if file.is_file()) for name in classes}


def from_folders(folder, side):
    test = next((folder / name for name in TEST_SPLITS if (folder / name).is_dir()), None)
    if not (folder / "train").is_dir() or test is None:
        sys.exit(f"{folder}: needs train/CLASS/* and test/CLASS/* (or val/CLASS/*), or MNIST's IDX files")
    splits = [class_files(folder / "train"), class_files(test)]
    if list(splits[0]) != list(splits[1]):
        sys.exit(f"{folder}: the classes of train/ and {test.name}/ are not the same")
    training = [file for files in splits[0].values() for file in files]
    side = side or usual_side(training)
    mode = "L" if are_gray(training) else "RGB"
    return [read(files, side, mode) for files in splits] + [list(splits[0])]


def read(files, side, mode):
    labeled = [(file, label) for label, name in enumerate(files) for file in files[name]]
    images = np.stack([decode(file, side, mode) for file, _ in labeled])
    return Split(images, np.array([label for _, label in labeled]))


def from_idx(folder, side):
    splits = [Split(images[..., None], labels) for images, labels in
              (idx_split(folder, prefix) for prefix in ("train", "t10k"))]
    if side not in (None, splits[0].images.shape[1]):
        sys.exit(f"{folder}: IDX files are used in their own size of {splits[0].images.shape[1]} pixels")
    return splits + [[str(label) for label in range(splits[0].labels.max() + 1)]]


def load(folder, side=None):
    """The training and the test `Split` of a data set, and the names of its classes."""
    folder = Path(folder)
    if not folder.is_dir():
        sys.exit(f"{folder}: no such folder")
    return from_idx(folder, side) if any(folder.glob("*-idx3-ubyte*")) else from_folders(folder, side)
