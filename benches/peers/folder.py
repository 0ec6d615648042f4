"""Trains a convolutional network on a folder of classes for a given time, as a user would instead of vitrine, and measures it.

The time counts from the first step to the last, including augmentation. Before that, all images are decoded into
memory, and a copy of the model takes two steps, so that torch has loaded its kernels. Afterwards, the last state of the
model is measured once on the test split, or on the validation split if there is no test split: no image of it serves
for any choice. Training uses all of train/, or with --hold-out as many images of it as vitrine, which keeps the others for validation.
The script prints one line of JSON.

Run:  python folder.py FOLDER --model resnet-18 --time 2m --threads 2
"""
import argparse
import copy
import json
import math
import os
import re
import sys
import time

import numpy as np
import torch
from torch.nn import functional

import airbench
import images
import resnets

WARM_UP = 0.2  # share of the time in which the learning rate rises
LABEL_SMOOTHING = 0.1
# The highest learning rates and the weight decay. For resnet-1m, the rate is the best of three with adamw, and of two
# with sgd, which was worse, on 165 images per class of CIFAR-10 in batches of 32. The deeper resnet-18 has half of it.
OPTIMIZERS = {"adamw": ({"resnet-18": 2e-3, "resnet-1m": 4e-3}, 0.05),
              "sgd": ({"resnet-18": 0.05, "resnet-1m": 0.1}, 5e-4)}


def seconds(text):
    """`90`, `90s`, `2m` or `1h` in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text}: needs a time such as 90s, 2m or 1h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


class Images:
    """Images of one split as bytes, and batches of them as normalized floats in channels-last order."""

    def __init__(self, split, mean=None, std=None):
        self.pixels = torch.from_numpy(split.images).permute(0, 3, 1, 2)  # in memory, channels come last
        self.labels = torch.from_numpy(split.labels)
        some = self.pixels[:: max(1, len(self.pixels) // 2000)].float()
        self.mean = some.mean((0, 2, 3))[:, None, None] if mean is None else mean
        self.std = some.std((0, 2, 3))[:, None, None] if std is None else std

    def batch(self, indices):
        return (self.pixels[indices].float() - self.mean) / self.std, self.labels[indices]


def shuffled(count, batch):
    """Endless batches of indices. Each image occurs once before any occurs again."""
    left = torch.empty(0, dtype=torch.long)
    while True:
        while len(left) < batch:
            left = torch.cat([left, torch.randperm(count)])
        yield left[:batch]
        left = left[batch:]


def augment(batch, flip):
    """Translates each image by up to an eighth of its side with a reflected border, and flips half of them
    horizontally."""
    count, _, side, _ = batch.shape
    pad = max(1, side // 8)
    windows = functional.pad(batch, [pad] * 4, mode="reflect").unfold(2, side, 1).unfold(3, side, 1)
    down, right = torch.randint(2 * pad + 1, (2, count))
    moved = windows[torch.arange(count), :, down, right]
    if flip:
        moved = torch.where(torch.rand(count, 1, 1, 1) < 0.5, moved.flip(3), moved)
    return moved.contiguous(memory_format=torch.channels_last)


def without_held_out(split, seed):
    """A split without a tenth of each class, at most 2000 images in all: what vitrine keeps for validation if there is no split for
    it, though not the same images."""
    share = min(0.1, 2000 / len(split.labels))
    order = np.random.default_rng(seed).permutation(len(split.labels))
    kept = [of[round(share * len(of)):] for label in np.unique(split.labels) if len(of := order[split.labels[order] == label])]
    kept = np.sort(np.concatenate(kept))
    return images.Split(split.images[kept], split.labels[kept])


class OneCycle:
    """Trains a ResNet with one cycle of the learning rate."""

    batch_size = staticmethod(lambda images: 64 if images >= 5000 else 32)

    def __init__(self, model, data, args):
        self.model, self.data, self.args = model, data, args
        self.optimizer, self.rate = make_optimizer(model, args)

    def step(self, indices, done):
        """Takes a training step at a share of the time, and returns the loss before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * one_cycle(done)
        pixels, labels = self.data.batch(indices)
        pixels = augment(pixels, not self.args.no_flip)
        with autocast(self.args):
            logits = self.model(pixels)
        loss = functional.cross_entropy(logits.float(), labels, label_smoothing=LABEL_SMOOTHING)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def finish(self):
        pass

    def logits(self, pixels):
        with autocast(self.args):
            return self.model(pixels.contiguous(memory_format=torch.channels_last)).float()


# The networks by name, and how each is trained.
MODELS = {name: (make, OneCycle) for name, make in resnets.MODELS.items()}
MODELS["airbench94"] = (airbench.Airbench94, airbench.Recipe)


def make_optimizer(model, args):
    """The optimizer, with weight decay for matrices and kernels only."""
    rates, decay = OPTIMIZERS[args.optimizer]
    rate = args.learning_rate or rates[args.model]
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
              {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0}]
    if args.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=0.9, nesterov=True, fused=True), rate
    return torch.optim.AdamW(groups, lr=rate, fused=True), rate


def one_cycle(done):
    """The learning rate as a share of the highest one, by the share of the time that is over: linear warm-up, then half
    a cosine."""
    return done / WARM_UP if done < WARM_UP else 0.5 + 0.5 * math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP))


def train(recipe, args):
    """Trains until the time is up. Returns the seconds and the number of steps."""
    batches = shuffled(len(recipe.data.labels), args.batch_size)
    recipe.model.train()
    steps, elapsed, start = 0, 0.0, time.perf_counter()
    while elapsed < args.time:
        loss = recipe.step(next(batches), elapsed / args.time)
        steps, elapsed = steps + 1, time.perf_counter() - start
    recipe.finish()
    if not loss.isfinite():
        sys.exit(f"training diverged: lower --learning-rate (now {recipe.rate})")
    return elapsed, steps


def load_torch(make_recipe, model, data, args):
    """Takes two steps on a copy of the model, so that torch loads its kernels."""
    recipe = make_recipe(copy.deepcopy(model).train(), data, args)
    for indices in torch.arange(2 * args.batch_size).remainder(len(data.labels)).split(args.batch_size):
        recipe.step(indices, 0.5)


def autocast(args):
    return torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bfloat16")


@torch.inference_mode()
def measure(recipe, data):
    """Accuracy and macro F1 on a split."""
    recipe.model.eval()
    predicted = []
    for indices in torch.arange(len(data.labels)).split(256):
        predicted.append(recipe.logits(data.batch(indices)[0]).argmax(1))
    predicted = torch.cat(predicted)
    f1 = []
    for label in data.labels.unique():
        right = ((predicted == label) & (data.labels == label)).sum()
        f1.append(2 * right / ((predicted == label).sum() + (data.labels == label).sum()))
    return (predicted == data.labels).float().mean().item(), torch.stack(f1).mean().item()


def default_precision():
    """bfloat16 where the CPU multiplies in it: with AMX 2.5 times as fast as float32, with AVX-512 1.7 times."""
    fast = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return "bfloat16" if fast else "float32"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="train/CLASS/* and test/CLASS/* (or val/CLASS/*), or MNIST's IDX files")
    parser.add_argument("--model", choices=list(MODELS), default="resnet-18")
    parser.add_argument("--time", type=seconds, default="2m", help="such as 90s, 2m or 1h (2m)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--image-size", type=int, metavar="SIDE", help="the images' own up to 96, else 96")
    parser.add_argument("--batch-size", type=int, help="64 for the ResNets and 512 for airbench94; 32 and 128 for fewer "
                                                       "than 5000 training images")
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), help="of the ResNets (adamw)")
    parser.add_argument("--learning-rate", type=float, help="the highest")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default=default_precision(),
                        help="of products while training and measuring: bfloat16 where the CPU multiplies in it, else float32")
    parser.add_argument("--hold-out", action="store_true", help="train on as many images as vitrine, not on all")
    parser.add_argument("--no-flip", action="store_true", help="for images that mean something else mirrored")
    args = parser.parse_args()
    if args.model == "airbench94" and args.optimizer:
        parser.error("--optimizer: airbench94 has its own")
    args.optimizer = args.optimizer or ("adamw" if args.model in resnets.MODELS else "sgd")
    return args


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    train_split, test_split, classes = images.load(args.folder, args.image_size)
    data = Images(without_held_out(train_split, args.seed) if args.hold_out else train_split)
    test = Images(test_split, data.mean, data.std)
    make_model, make_recipe = MODELS[args.model]
    args.batch_size = args.batch_size or make_recipe.batch_size(len(data.labels))
    _, channels, side, _ = data.pixels.shape
    model = make_model(len(classes), channels, side).to(memory_format=torch.channels_last)
    load_torch(make_recipe, model, data, args)
    recipe = make_recipe(model, data, args)
    elapsed, steps = train(recipe, args)
    accuracy, macro_f1 = measure(recipe, test)
    seen = steps * args.batch_size
    print(json.dumps({
        "model": args.model, "params": sum(p.numel() for p in model.parameters()),
        "data": os.path.basename(os.path.normpath(args.folder)), "seed": args.seed, "seconds": round(elapsed, 2),
        "epochs": round(seen / len(data.labels), 2), "images_per_second": round(seen / elapsed, 1),
        "accuracy": round(accuracy, 5), "macro_f1": round(macro_f1, 5), "image_size": side,
        "batch_size": args.batch_size, "optimizer": args.optimizer, "learning_rate": recipe.rate, "precision": args.precision,
        "threads": args.threads, "training_images": len(data.labels), "test_images": len(test.labels)}))


if __name__ == "__main__":
    main()
