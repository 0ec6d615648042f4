"""A linear probe with transformers and scikit-learn: features of a backbone once, then logistic regression.

Run:  python probe_peer.py BACKBONE DATA [--image-size N] [--threads N]

BACKBONE is a folder as Hugging Face writes it, DATA has a folder per class in train/ and test/, or in itself; then a fifth is the
test split. C is chosen by cross-validation from the strengths that vitrine compares. Prints one line of JSON.
"""
import argparse
import json
import time
from pathlib import Path

begin = time.perf_counter()
parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("backbone")
parser.add_argument("data", type=Path)
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()

import numpy as np
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from transformers import AutoImageProcessor, AutoModel

torch.set_num_threads(args.threads)
model = AutoModel.from_pretrained(args.backbone, dtype=torch.float32).eval()
processor = AutoImageProcessor.from_pretrained(args.backbone)
size = {"height": args.image_size, "width": args.image_size}


def images(folder):
    """Paths and classes, in the order of their names."""
    found = sorted(path for path in folder.glob("*/*") if path.is_file())
    return found, np.array([path.parent.name for path in found])


def batches(paths):
    """Preprocessed batches."""
    def load(path):
        with Image.open(path) as image:
            return image.convert("RGB")

    for first in range(0, len(paths), args.batch_size):
        loaded = [load(path) for path in paths[first:first + args.batch_size]]
        yield processor(loaded, return_tensors="pt", crop_size=size,
                        size={"shortest_edge": args.image_size * 256 // 224})["pixel_values"]


@torch.inference_mode()
def features(paths):
    return np.concatenate([model(pixels).pooler_output.numpy() for pixels in batches(paths)])


if (args.data / "train").is_dir():
    train, test = images(args.data / "train"), images(args.data / "test")
else:
    paths, labels = images(args.data)
    is_test = np.arange(len(paths)) % 5 == 0
    paths = np.array(paths)
    train, test = (paths[~is_test], labels[~is_test]), (paths[is_test], labels[is_test])
loaded = time.perf_counter()
x_train, x_test = features(train[0]), features(test[0])
computed = time.perf_counter()
scale = -round(np.log10(x_train.var(axis=0).mean()))
strengths = [10.0 ** (power + scale) for power in (-3, -2, -1, 0, 1)]
search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": strengths}, cv=5, n_jobs=args.threads)
search.fit(x_train, train[1])
answers = search.predict(x_test)
print(json.dumps({
    "top1": float((answers == test[1]).mean()), "test": len(answers), "C": search.best_params_["C"],
    "features_seconds": computed - loaded, "fit_seconds": time.perf_counter() - computed,
    "seconds": time.perf_counter() - begin,
}))
