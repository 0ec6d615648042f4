"""Imports and exports the models of make_full_size.py, and compares their results with those of the original libraries.

For each model: `vitrine import`, `vitrine classify` on the two photos, then `vitrine export` to the model's own layout.
The library must load the exported model with strict keys, and compute the original logits. Backbones without a
classifier are skipped. The exit status is 1 if a check fails.

Run:  python check_full_size.py OUT_DIR --vitrine BINARY [--only NAME...]
"""
import argparse
import json
import os
import shutil
import subprocess
import sys

import torch
import transformers as hf
from safetensors.torch import load_file

from make_full_size import HUGGING_FACE, OPTIONS, READ_ONLY, TIMM, TORCHVISION, build, logits, pixels, weights_path

PROBABILITY_LIMIT = 1e-3  # allows for differences of a gray level between two image filters
ROUND_TRIP_LIMIT = 1e-5  # relative to max(1, |logit|)


def vitrine(binary, *args):
    done = subprocess.run([binary, *args], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"status {done.returncode} of: vitrine {' '.join(args)}\n{done.stdout}{done.stderr}")
    return done.stdout


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


def classify(binary, model, photos, expected):
    """The largest differences of probabilities and of logits, over all classes and photos."""
    top = str(len(expected["logits"][0]))
    out = vitrine(binary, "classify", model, *photos, "--format", "jsonl", "--logits", "--top", top)
    rows = [json.loads(line) for line in out.splitlines()]
    if len(rows) != len(photos):
        raise RuntimeError(f"{len(rows)} lines for {len(photos)} photos")
    dp = dlogit = 0.0
    for row, want_logits, want in zip(rows, expected["logits"], expected["probabilities"]):
        if "error" in row:
            raise RuntimeError(row["error"])
        got = {p["index"]: p for p in row["predictions"]}
        if len(got) != len(want) or len(row["logits"]) != len(want):
            raise RuntimeError(f"{len(got)} predictions and {len(row['logits'])} logits for {len(want)} classes")
        if expected["labels"]:
            wrong = [f"{i} is {got[i]['label']!r}" for i, name in enumerate(expected["labels"])
                     if got[i]["label"] != name]
            if wrong:
                raise RuntimeError(f"{len(wrong)} wrong labels: {', '.join(wrong[:3])}")
        dp = max(dp, *(abs(got[i]["probability"] - p) for i, p in enumerate(want)))
        dlogit = max(dlogit, *(abs(a - b) for a, b in zip(row["logits"], want_logits)))
    return dp, dlogit


def reload(name, path):
    """Loads the exported model in its library. No key may be missing, unexpected, or of another shape."""
    if name in HUGGING_FACE:
        model, info = HUGGING_FACE[name][0].from_pretrained(path, output_loading_info=True)
        faults = {k: v for k, v in info.items() if v}
        if faults:
            raise RuntimeError(f"from_pretrained: {faults}")
        return model.eval()
    model = build(name)
    model.load_state_dict(load_file(path), strict=True)
    return model.eval()


def round_trip(binary, name, folder, model, photos, expected):
    """The largest difference of the library's logits before and after the export, relative to max(1, |logit|)."""
    layout = "hugging-face" if name in HUGGING_FACE else "torchvision" if name in TORCHVISION else "timm"
    path = os.path.join(folder, "exported" if name in HUGGING_FACE else "exported.safetensors")
    remove(path)
    vitrine(binary, "export", model, "--layout", layout, "--output", path)
    again = reload(name, path)
    xs = pixels(name, folder, again, photos)
    if os.path.exists(os.path.join(path, "preprocessor_config.json")):  # the exported pipeline, if there is one
        for x, y in zip(xs, pixels(name, path, again, photos)):
            if x.shape != y.shape or not torch.allclose(x, y, atol=1e-5):
                raise RuntimeError("the exported preprocessor_config.json makes other pixels of the photos")
    want = torch.tensor(expected["logits"])
    return ((logits(again, xs) - want).abs() / want.abs().clamp(min=1.0)).max().item()


def check(binary, name, out_dir):
    """The table row of a model, and the failures as text."""
    folder = os.path.join(out_dir, name)
    model = os.path.join(folder, "vitrine.safetensors")
    with open(os.path.join(folder, "expected.json")) as fh:
        expected = json.load(fh)
    photos = [os.path.join(out_dir, "photos", f) for f in expected["photos"]]
    remove(model)
    numbers, faults = ["-", "-", "-"], []
    try:
        vitrine(binary, "import", weights_path(name, folder), "--output", model, *OPTIONS.get(name, []))
        dp, dlogit = classify(binary, model, photos, expected)
        numbers[:2] = f"{dp:.1e}", f"{dlogit:.1e}"
        if not dp <= PROBABILITY_LIMIT:
            faults.append(f"probabilities differ by {dp:.1e}")
    except Exception as e:
        faults.append(str(e))
    try:
        if os.path.exists(model) and name not in READ_ONLY:
            back = round_trip(binary, name, folder, model, photos, expected)
            numbers[2] = f"{back:.1e}"
            if not back <= ROUND_TRIP_LIMIT:
                faults.append(f"logits differ by {back:.1e} after the round trip")
    except Exception as e:
        faults.append(str(e))
    return numbers, faults


def main():
    names = [*TIMM, *TORCHVISION, *HUGGING_FACE]
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("out_dir")
    args.add_argument("--vitrine", required=True, metavar="BINARY")
    args.add_argument("--only", nargs="+", metavar="NAME", choices=names, default=names)
    args = args.parse_args()
    torch.set_num_threads(1)
    hf.utils.logging.disable_progress_bar()
    failed = []
    print(f"{'NAME':24}{'max |dp|':>10}{'max |dlogit|':>14}{'round trip':>12}")
    for name in args.only:
        (dp, dlogit, back), faults = check(args.vitrine, name, args.out_dir)
        print(f"{name:24}{dp:>10}{dlogit:>14}{back:>12}  {'FAIL' if faults else 'PASS'}", flush=True)
        if faults:
            failed.append((name, faults))
    for name, faults in failed:
        print(f"\n{name}:")
        for fault in faults:
            print("  " + fault.strip().replace("\n", "\n  "))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
