"""Compares the logits of the models of make_full_size.py on photos that need no scaling, so that pixels are the same.

Each photo is scaled with PIL to the size before the crop and stored; preprocessing then only crops and normalizes. The
models are imported with `vitrine import --verify`, which prints the largest difference, relative to the largest logit.

With --dinov2 FOLDER, it also checks the real weights of a DINOv2 of Hugging Face at 224 pixels, whose positions are
resampled: features are compared as the logits of a random classifier.

Run:  python check_exact.py OUT_DIR --vitrine BINARY [--dinov2 FOLDER] [--only NAME...]
"""
import argparse
import json
import math
import os
import shutil
import subprocess

import timm
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file

from make_full_size import DINO_PROCESSOR, HUGGING_FACE, OPTIONS, READ_ONLY, TIMM, build, logits, pixels, weights_path


def scaled_side(name, folder, model):
    """The side of the scaled image before the crop."""
    if name in TIMM:
        config = timm.data.resolve_model_data_config(model)
        return math.floor(config["input_size"][-1] / config["crop_pct"])
    processor = hf.AutoImageProcessor.from_pretrained(folder)
    return processor.size.get("shortest_edge") or processor.size["height"]


def load(name, folder):
    if name in HUGGING_FACE:
        return HUGGING_FACE[name][0].from_pretrained(folder).eval()
    model = build(name)
    model.load_state_dict(load_file(os.path.join(folder, "model.safetensors")))
    return model.eval()


def check(binary, name, folder, photos, model, options):
    side = scaled_side(name, folder, model)
    images = []
    for number, photo in enumerate(photos):
        image = Image.open(photo).convert("RGB")
        cut = min(image.size)
        path = os.path.join(folder, f"exact{number}.png")
        image.crop((0, 0, cut, cut)).resize((side, side), Image.BICUBIC).save(path)
        images.append(path)
    out = logits(model, pixels(name, folder, model, images))
    expected = os.path.join(folder, "exact.json")
    with open(expected, "w") as file:
        json.dump([{"image": os.path.basename(path), "logits": row.tolist()} for path, row in zip(images, out)], file)
    command = [binary, "import", weights_path(name, folder), "--output", os.path.join(folder, "exact.safetensors"),
               "--verify", expected, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if "difference" in line] or [done.stderr.strip()]
    worst = max(float(line.rsplit(" ", 1)[1]) for line in lines) if done.returncode == 0 else None
    print(f"{name:26}{'FAIL: ' + lines[-1] if worst is None else f'{worst:.1e}'}", flush=True)


def real_dinov2(source, folder):
    """The weights of a DINOv2 with a random classifier, and its files."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    torch.manual_seed(3)
    config = hf.AutoConfig.from_pretrained(source, num_labels=100)
    model = hf.Dinov2ForImageClassification.from_pretrained(source, config=config, dtype=torch.float32).eval()
    model.classifier.weight.data.normal_(std=1.0)
    model.save_pretrained(folder)
    DINO_PROCESSOR.save_pretrained(folder)
    return model


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("out_dir")
    args.add_argument("--vitrine", required=True, metavar="BINARY")
    args.add_argument("--dinov2", metavar="FOLDER")
    args.add_argument("--only", nargs="+", metavar="NAME", default=sorted(READ_ONLY | {"timm_siglip"}))
    args = args.parse_args()
    torch.set_num_threads(1)
    hf.utils.logging.disable_progress_bar()
    photos = [os.path.join(args.out_dir, "photos", file) for file in ("photo.png", "photo_500x375.png")]
    for name in args.only:
        folder = os.path.join(args.out_dir, name)
        check(args.vitrine, name, folder, photos, load(name, folder), OPTIONS.get(name, []))
    if args.dinov2:
        folder = os.path.join(args.out_dir, "real_dinov2")
        model = real_dinov2(args.dinov2, folder)
        HUGGING_FACE["real_dinov2"] = (hf.Dinov2ForImageClassification, None, None)
        check(args.vitrine, "real_dinov2", folder, photos, model, ["--image-size", "224"])


if __name__ == "__main__":
    main()
