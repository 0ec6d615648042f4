"""Trains presets of vitrine with vitrine and with PyTorch, with everything else equal, and compares the accuracies.

Vitrine runs first. The twin, a PyTorch model, takes the training and validation images and all numbers of the recipe
from vitrine's run folder, and keeps the best epoch by the validation images, as vitrine does. First, vitrine's weights
in the twin's architecture must give vitrine's test accuracy. Only random numbers differ between the two, so their means
over seeds must agree within the standard error.

Run:  python twin.py FOLDER --vitrine target/release/vitrine     (FOLDER: 32-pixel images, such as cifar10-165)
"""
import argparse
import copy
import csv
import json
import math
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from safetensors.torch import load_file
from timm.optim import param_groups_weight_decay
from torch.nn import functional
from torchvision.transforms import v2

import images
from twin_models import MODELS

SIDE = 32
# Keys of the recipe and its augmentation: those that the twin reads, those without effect on these runs, and the values
# of others that change nothing. Any other key must be off, so that no part is missing in the twin unnoticed.
READ = {"epochs", "batch_size", "learning_rate", "final_learning_rate", "warmup", "weight_decay", "betas", "epsilon",
        "clip_norm", "label_smoothing", "augmentation", "crop", "horizontal_flip", "brightness", "contrast",
        "saturation", "hue"}
WITHOUT_EFFECT = {"bad_file_limit", "gradient_checkpointing", "momentum", "mix_probability", "mix_mode", "mix_until"}
UNCHANGING = {"accumulate": 1, "layer_decay": 1.0, "optimizer": "adamw", "repeats": 1}


def run_vitrine(args, model, recipe, seed, folder):
    """The run's configuration, its images by split, its weights, and its accuracy on the test images."""
    command = [args.vitrine, "train", args.folder, "--model", model, "--recipe", recipe, "--epochs", args.epochs,
               "--seed", seed, "--threads", args.threads, "--device", "cpu", "--output", folder]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"status {done.returncode} of: {' '.join(map(str, command))}\n{done.stderr}")
    config = tomllib.loads((folder / "config.toml").read_text())
    with open(folder / "images.csv") as file:
        rows = list(csv.DictReader(file))
    splits = {name: read([row for row in rows if row["split"] == name], config) for name in ("train", "val", "test")}
    metrics = json.loads((folder / "metrics.json").read_text())
    return config, splits, load_file(folder / "model.safetensors"), metrics["test"]["top1"]


def read(rows, config):
    """Bytes [count, 3, side, side] and labels."""
    pixels = np.stack([images.decode(row["path"], SIDE, "RGB") for row in rows])
    labels = torch.tensor([config["classes"].index(row["label"]) for row in rows])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), labels


def normalized(pixels, config):
    mean, std = (torch.tensor(config["preprocessing"][key])[:, None, None] for key in ("mean", "std"))
    return (pixels / 255 - mean) / std


def check(given):
    """Ends the program if the recipe, or its augmentation, has a part that the twin lacks."""
    for key, value in given.items():
        if key not in READ | WITHOUT_EFFECT and value not in (UNCHANGING.get(key), 0, "none"):
            sys.exit(f"the twin does not know what `{key} = {value}` of the recipe does")


def augmentation(given):
    """Vitrine's augmentation, made of torchvision's transforms."""
    crop, flip = given["crop"], given["horizontal_flip"]
    jitter = [given[key] for key in ("brightness", "contrast", "saturation", "hue")]
    if crop != "none" and list(crop) != ["pad"]:
        sys.exit(f"the twin does not know the crop {crop} of the recipe")
    parts = [] if crop == "none" else [v2.RandomCrop(SIDE, padding=crop["pad"]["pixels"])]
    parts += [v2.RandomHorizontalFlip(flip)] if flip else []
    parts += [v2.ColorJitter(*jitter)] if any(jitter) else []
    return v2.Compose(parts or [v2.Identity()])


def learning_rate(recipe, done):
    """Linear warm-up, then half a cosine to the last rate."""
    peak, last, warm_up = recipe["learning_rate"], recipe["final_learning_rate"], recipe["warmup"]
    if done < warm_up:
        return peak * max(done / warm_up, 1e-3)
    return peak * (last + (1 - last) * 0.5 * (1 + math.cos(math.pi * (done - warm_up) / (1 - warm_up))))


def make_optimizer(model, recipe):
    groups = param_groups_weight_decay(model, recipe["weight_decay"], ["pos_embed"])
    return torch.optim.AdamW(groups, betas=recipe["betas"], eps=recipe["epsilon"], fused=True)


@torch.inference_mode()
def measure(model, split, config):
    """Accuracy and negative loss, for comparing epochs: greater is better."""
    pixels, labels = split
    model.eval()
    logits = torch.cat([model(normalized(part, config)) for part in pixels.split(256)])
    return (logits.argmax(1) == labels).float().mean().item(), -functional.cross_entropy(logits, labels).item()


def train(model, splits, config):
    """Trains the twin, and returns the weights of the best epoch by the validation images."""
    recipe, (pixels, labels) = config["recipe"], splits["train"]
    optimizer, augment = make_optimizer(model, recipe), augmentation(recipe["augmentation"])
    steps = recipe["epochs"] * math.ceil(len(labels) / recipe["batch_size"])
    step, best, best_weights = 0, None, None
    for _ in range(recipe["epochs"]):
        model.train()
        for indices in torch.randperm(len(labels)).split(recipe["batch_size"]):
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, step / steps)
            batch = torch.stack([augment(pixels[index]) for index in indices])
            loss = functional.cross_entropy(model(normalized(batch, config)), labels[indices],
                                            label_smoothing=recipe["label_smoothing"])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["clip_norm"])
            optimizer.step()
        now = measure(model, splits["val"], config)
        if best is None or now > best:
            best, best_weights = now, copy.deepcopy(model.state_dict())
    return best_weights


def pair(args, name, recipe, seed):
    """The test accuracy of vitrine and of its twin."""
    with tempfile.TemporaryDirectory() as folder:
        config, splits, weights, ours = run_vitrine(args, name, recipe, seed, Path(folder, "run"))
    check(config["recipe"])
    check(config["recipe"]["augmentation"])
    torch.manual_seed(seed)
    model = MODELS[name](len(config["classes"]))
    fresh = copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)
    again, _ = measure(model, splits["test"], config)
    if abs(again - ours) * len(splits["test"][1]) > 2.5:  # allows for images whose two best classes are almost equal
        sys.exit(f"{name}: vitrine's weights give {again:.4f} in PyTorch, and {ours:.4f} in vitrine")
    model.load_state_dict(fresh)
    model.load_state_dict(train(model, splits, config))
    theirs, _ = measure(model, splits["test"], config)
    print(f"{name} {recipe} seed {seed}: vitrine {100 * ours:.2f}%, PyTorch {100 * theirs:.2f}%", file=sys.stderr,
          flush=True)
    return ours, theirs


def row(name, recipe, pairs):
    """Prints means with deviations, and their difference with its standard error, in percentage points."""
    ours, theirs = zip(*pairs)
    cells = [f"{100 * mean(side):.1f} ± {100 * stdev(side):.1f}" for side in (ours, theirs)]
    error = math.sqrt((stdev(ours) ** 2 + stdev(theirs) ** 2) / len(pairs))
    difference = f"{100 * (mean(ours) - mean(theirs)):+.1f} ± {100 * error:.1f}"
    return f"| {name}, {recipe} | {' | '.join(cells)} | {difference} |"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="train/CLASS/* and test/CLASS/*, of 32 pixels")
    parser.add_argument("--vitrine", required=True, metavar="PATH", help="the program to compare")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="NAME",
                        help=", ".join(MODELS))
    parser.add_argument("--recipes", nargs="+", default=["plain"], metavar="NAME",
                        help="named recipes or files of AdamW, without what the twin lacks")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="two or more")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if len(args.seeds) < 2:
        parser.error("--seeds: two or more are needed for a deviation")
    return args


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    rows = [row(name, recipe, [pair(args, name, recipe, seed) for seed in args.seeds])
            for name in args.models for recipe in args.recipes]
    print("| model, recipe | vitrine | PyTorch | difference |\n|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
