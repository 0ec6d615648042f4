"""Checks that every registered Vision Transformer of timm, transformers, and torchvision is imported exactly or
refused.

Each model is reduced to two blocks and, if its constructor takes a width, to 16 values per head. It gets random weights
of unit gain and is written as its library writes it (a folder with config.json; for torchvision a file). Then
`vitrine import --verify` compares it with the library's own logits for one image. The script prints a line per model:
equal, refused (with the reason), or DIFFERENT, which is a defect. The exit status is 1 if there is a defect.

With --mutate, the files of a few models are altered: each tensor is dropped, renamed, and transposed, and each key of
config.json is dropped and changed, one at a time. An altered model that is imported must give the original logits, or
those that the library gives for the altered files.

Run:  pip install torch torchvision timm==1.0.31 transformers safetensors numpy pillow
      cargo build
      python check_architectures.py OUT_DIR --vitrine target/debug/vitrine [--only PART...] [--mutate]
"""
import argparse
import collections
import copy
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import timm
import torch
import torchvision
import transformers as hf
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models._hub import save_for_hf
from timm.models._registry import _model_to_module

TOLERANCE = "1e-4"
CLASSES = 10
OURS = {"vision_transformer", "deit", "cait", "swin_transformer", "swin_transformer_v2"}


def randomize(model, seed=0):
    """Draws weights of unit gain, so that every part of the model affects the logits."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            n = torch.randn(p.shape, generator=g)
            leaf = name.rsplit(".", 1)[-1]
            if leaf in ("gamma", "gamma_1", "gamma_2", "lambda1"):
                p.copy_(0.7 + 0.1 * n)
            elif p.ndim >= 2 and (leaf == "weight" or leaf == "in_proj_weight"):
                p.copy_(n / p[0].numel() ** 0.5)
            elif p.ndim == 1 and leaf == "weight":
                p.copy_(1 + 0.2 * n)
            else:
                p.copy_(0.3 * n)
    return model.eval()


def image(folder, height, width, channels=3):
    """An image of the model's size, as pixels and as normalized input (mean and deviation 0.5)."""
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, channels), dtype=np.uint8)
    Image.fromarray(pixels).save(os.path.join(folder, "image.png"))
    return (torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255 - 0.5) / 0.5


def logits_of(model, x):
    with torch.no_grad():
        out = model(x)
    return getattr(out, "logits", out)[0]


def expect(folder, logits):
    with open(os.path.join(folder, "logits.json"), "w") as fh:
        json.dump([{"image": "image.png", "logits": logits.tolist()}], fh)


def call(binary, *args):
    return subprocess.run([binary, *args], capture_output=True, text=True, timeout=600)


def reason(done):
    lines = [line for line in done.stderr.strip().splitlines() if line.startswith(("error", "Error"))] or done.stderr.splitlines()
    return (lines[-1] if lines else "").strip()


def verify(binary, folder, weights, options=()):
    """Runs the import: equal, refused, or DIFFERENT, and the reason."""
    out = os.path.join(folder, "out.safetensors")
    done = call(binary, "import", weights, "--output", out, "--verify", os.path.join(folder, "logits.json"), "--tolerance",
                TOLERANCE, *options)
    if os.path.exists(out):
        os.remove(out)
    if "DIFFERENT" in done.stdout:
        return "DIFFERENT", done.stdout.strip().splitlines()[0].split("/")[-1]
    if done.returncode == 0:
        return "equal", done.stdout.strip().splitlines()[0].rsplit(" ", 1)[-1]
    if done.returncode == 1:
        return "refused", reason(done)
    return "DIFFERENT", f"status {done.returncode}: {done.stderr[-200:]}"


# timm

def timm_names():
    """The names of all models whose module has a patch embedding, those of supported families first."""
    def has_patches(name):
        return "patch_embed" in inspect.getsource(importlib.import_module(f"timm.models.{_model_to_module[name]}"))

    names = [name for name in timm.list_models() if has_patches(name)]
    return sorted(names, key=lambda name: _model_to_module[name] not in OURS)


def make_timm(name, real):
    """A model with two blocks, or with stages of one block; not reduced if its constructor takes no depth."""
    errors = []
    narrow = {"embed_dim": width(name)} if width(name) else {}
    cuts = [{"depth": 2, "img_size": 64, **narrow}, {"depth": 2, **narrow}, {"depth": 2}, {"depths": (2, 2), "img_size": 64},
            {"depth": 2, "embed_dim": 192, "num_heads": 3, "num_kv_heads": 3}, {"stages": (1, 1, 1, 1), "embed_dim": 32},
            {"depths": (1, 1, 1, 1), **({"embed_dim": 32} if "huge" in name else {})}, {"depths": (1, 1, 1, 1)}, {}]
    for cut in cuts:
        if "depths" in cut and len(cut["depths"]) == 2 and _model_to_module[name] not in OURS:
            continue
        kwargs = dict(cut)
        if kwargs.get("img_size") and "_patch" in name and int(name.split("_patch")[1].split("_")[0]) in (14, 28):
            kwargs["img_size"] = 56
        if "depths" in kwargs and len(kwargs["depths"]) == 2:
            kwargs["num_heads"] = swin_heads(name)
            kwargs["embed_dim"] = 16 * kwargs["num_heads"][0]
            if "window" in name:
                kwargs["img_size"] = 8 * int("".join(c for c in name.split("window")[1].split("_")[0].split("to")[-1]))
        try:
            if real:
                return timm.create_model(name, num_classes=CLASSES, **kwargs)
            with torch.device("meta"):
                model = timm.create_model(name, num_classes=CLASSES, **kwargs)
            return model.to_empty(device="cpu")
        except Exception as e:  # the constructor has other arguments
            errors.append(f"{type(e).__name__}: {e}"[:80])
    raise RuntimeError("; ".join(errors))


def width(name):
    """The width with 16 values per head, by the table of timm's names; None for names that it lacks."""
    config = os.path.join(os.path.dirname(__file__), "..", "..", "src", "import", "config")
    with open(os.path.join(config, "timm_architectures.tsv")) as table:
        rows = [line.rstrip("\n").split("\t") for line in table if line.startswith(name + "\t")]
    if not rows or rows[0][1].startswith("Swin"):
        return None
    return 16 * json.loads(rows[0][4]).get("num_heads", 12)


def swin_heads(name):
    return {"tiny": (3, 6), "small": (3, 6), "s3": (3, 6), "base": (4, 8), "large": (6, 12)}[name.split("_")[1]]


def check_timm(binary, folder, name):
    real = _model_to_module[name] in OURS
    model = make_timm(name, real)
    if sum(p.numel() for p in model.parameters()) > 8e8:
        return "skipped", "more than 800 million parameters in two blocks"
    if real:
        write_timm(randomize(model), folder)
    else:  # the model was made without values: make it with values unless it is refused
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data.zero_()
        write_timm(model.half(), folder, run=False)
        done = call(binary, "import", folder, "--output", os.path.join(folder, "out.safetensors"))
        if done.returncode:
            return "refused", reason(done)
        model = randomize(make_timm(name, True))
        write_timm(model, folder)
    return verify(binary, folder, folder)


def write_timm(model, folder, run=True):
    # safetensors does not store tensors that share memory.
    tensors = {key: value.clone() for key, value in model.state_dict().items()}
    model.state_dict = lambda: tensors
    save_for_hf(model, folder, safe_serialization=True)
    path = os.path.join(folder, "config.json")
    config = json.load(open(path))
    config["pretrained_cfg"].update(crop_pct=1.0, crop_mode="center", mean=[0.5] * 3, std=[0.5] * 3)
    json.dump(config, open(path, "w"))
    if not run:
        return
    channels, height, width = config["pretrained_cfg"]["input_size"]
    x = image(folder, height, width)
    try:
        expect(folder, logits_of(model, x))
    except Exception as e:
        if model.__class__.__name__ in ("VisionTransformer", "SwinTransformer", "SwinTransformerV2", "Cait"):
            raise
        expect(folder, torch.zeros(CLASSES))


# transformers

SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8,
         "intermediate_size": 96, "num_labels": CLASSES, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
         "num_register_tokens": 4, "vocab_size": 64, "mlp_ratio": 2, "depth": 2, "num_layers": 2}


def transformers_names():
    """The classes of image classifiers and image feature extractors that take a configuration."""
    table = {}
    for mapping in (hf.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, hf.MODEL_MAPPING):
        for config, classes in registered(mapping):
            fields = inspect.signature(config.__init__).parameters
            if not ("patch_size" in fields and ("image_size" in fields or "num_channels" in fields)):
                continue
            for cls in classes if isinstance(classes, tuple) else (classes,):
                table[cls.__name__] = (cls, config)
    table["DeiTForImageClassificationWithTeacher"] = (hf.DeiTForImageClassificationWithTeacher, hf.DeiTConfig)
    for name in ("SiglipVisionModel",):
        table[name] = (getattr(hf, name), hf.SiglipVisionConfig)
    return table


def registered(mapping):
    """The pairs of a mapping, without those whose classes are listed but missing in this version."""
    for config in mapping.keys():
        try:
            yield config, mapping[config]
        except Exception:
            continue


def make_transformers(cls, config_class):
    fields = inspect.signature(config_class.__init__).parameters
    chosen = {key: value for key, value in SMALL.items() if key in fields or key == "num_labels"}
    if config_class is hf.SwinConfig or config_class is hf.Swinv2Config:
        chosen["patch_size"] = 2
    # Some configurations take only a whole number as the ratio, some have none.
    attempts = [{**chosen, **({"mlp_ratio": ratio} if "mlp_ratio" in chosen else {})} for ratio in (2, 2.0)]
    for arguments in (*attempts, {}):
        try:
            config = config_class(**arguments)
            if not arguments and hasattr(config, "num_hidden_layers"):
                config.num_hidden_layers = 2
            with torch.device("meta"):
                size = sum(p.numel() for p in cls(config).parameters())
            if size < 2e8:
                return cls(config)
            error = f"{size} parameters"
        except Exception as e:
            error = str(e)
    raise RuntimeError(error)


def check_transformers(binary, folder, name):
    cls, config_class = transformers_names()[name]
    try:
        model = make_transformers(cls, config_class)
    except Exception as e:
        return "skipped", f"cannot be made from a configuration alone: {e}"[:100]
    model = randomize(model)
    model.save_pretrained(folder)
    side = getattr(model.config, "image_size", 32)
    side = side if isinstance(side, int) and side <= 448 else 32
    write_preprocessor(folder, side)
    x = image(folder, side, side)
    try:
        expect(folder, logits_of(model, x).reshape(-1)[:CLASSES])
    except Exception:
        expect(folder, torch.zeros(CLASSES))
    return verify(binary, folder, folder)


def write_preprocessor(folder, side):
    with open(os.path.join(folder, "preprocessor_config.json"), "w") as fh:
        json.dump({"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": side, "width": side},
                   "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_center_crop": False,
                   "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, fh)


# torchvision

def torchvision_names():
    return [name for name in torchvision.models.list_models(module=torchvision.models)]


def make_torchvision(name):
    if name.startswith("vit_"):
        big = {"b": (768, 12), "l": (1024, 16), "h": (1280, 16)}[name.split("_")[1]]
        patch = int(name.split("_")[2])
        side = 8 * patch if patch != 14 else 112
        return torchvision.models.VisionTransformer(side, patch, 2, big[1], big[0], 4 * big[0], num_classes=CLASSES), side
    if name.startswith("swin_"):
        window = [8, 8] if "v2" in name else [7, 7]
        dim, heads = {"t": (96, [3, 6]), "s": (96, [3, 6]), "b": (128, [4, 8])}[name.split("_")[-1]]
        swin = torchvision.models.swin_transformer
        v2 = dict(block=swin.SwinTransformerBlockV2, downsample_layer=swin.PatchMergingV2) if "v2" in name else {}
        return swin.SwinTransformer([4, 4], dim, [2, 2], heads, window, num_classes=CLASSES, **v2), window[0] * 8
    return getattr(torchvision.models, name)(num_classes=CLASSES), 64


def check_torchvision(binary, folder, name):
    model, side = make_torchvision(name)
    model = randomize(model)
    weights = os.path.join(folder, f"{name}.pth")
    torch.save(model.state_dict(), weights)
    x = image(folder, side, side)
    ours = name.startswith(("vit_", "swin_"))
    expect(folder, logits_of(model, x) if ours else torch.zeros(CLASSES))
    options = ["--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5", "--crop", "1"]
    if name.startswith("vit_"):
        options += ["--heads", str(model.encoder.layers[0].num_heads)]
    return verify(binary, folder, weights, options + (["--image-size", str(side)] if ours else []))


# Alterations, one at a time

MUTATED = {
    "timm": [("vit_small_patch16_224", dict(embed_dim=48, num_heads=3, depth=2, img_size=64)),
             ("vit_small_patch14_reg4_dinov2", dict(embed_dim=48, num_heads=3, depth=2, img_size=56)),
             ("vit_base_patch16_siglip_224", dict(embed_dim=48, num_heads=3, depth=2, img_size=64)),
             ("deit3_small_patch16_224", dict(embed_dim=48, num_heads=3, depth=2, img_size=64)),
             ("deit_tiny_distilled_patch16_224", dict(embed_dim=48, num_heads=3, depth=2, img_size=64)),
             ("cait_xxs24_224", dict(embed_dim=48, num_heads=3, depth=2, img_size=64)),
             ("vit_medium_patch16_reg4_gap_256", dict(embed_dim=48, num_heads=3, depth=2, img_size=64)),
             ("swin_tiny_patch4_window7_224", dict(embed_dim=24, depths=(2, 2), num_heads=(2, 4), img_size=56)),
             ("swinv2_tiny_window8_256", dict(embed_dim=24, depths=(2, 2), num_heads=(2, 4), img_size=64))],
    "transformers": ["ViTForImageClassification", "ViTMSNForImageClassification", "DeiTForImageClassification",
                     "DeiTForImageClassificationWithTeacher", "SwinForImageClassification", "Swinv2ForImageClassification"],
}


def others(value):
    """Other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1, value * 2]
    if isinstance(value, str):
        return [value + "x"]
    if isinstance(value, list) and value:
        return [value[1:], [others(value[0])[0], *value[1:]] if others(value[0]) else value[:-1]]
    if isinstance(value, dict) and value:
        return [dict(list(value.items())[1:])]
    return []


def places(config, path=()):
    """The paths of all keys, two levels deep, without those of the preprocessing, which is checked elsewhere."""
    for key, value in config.items():
        yield (*path, key)
        if isinstance(value, dict) and key in ("pretrained_cfg", "model_args"):
            yield from places(value, (*path, key))


PREPROCESSING = {"mean", "std", "crop_pct", "crop_mode", "interpolation"}


def changed_configs(config):
    for path in places(config):
        # Without `pretrained_cfg`, the preprocessing is assumed, with a warning.
        if path[-1] in PREPROCESSING or path == ("pretrained_cfg",):
            continue
        dropped = copy.deepcopy(config)
        part = dropped
        for key in path[:-1]:
            part = part[key]
        value = part.pop(path[-1])
        yield ".".join(path) + " dropped", dropped
        for other in others(value):
            changed = copy.deepcopy(config)
            part = changed
            for key in path[:-1]:
                part = part[key]
            part[path[-1]] = other
            yield f"{'.'.join(path)} = {json.dumps(other)[:40]}", changed


def changed_weights(weights):
    for name, tensor in weights.items():
        rest = {key: value for key, value in weights.items() if key != name}
        yield f"{name} dropped", rest
        yield f"{name} renamed", {**rest, name + "_": tensor}
        if tensor.ndim >= 2 and tensor.shape[0] != tensor.shape[1]:
            yield f"{name} transposed", {**rest, name: tensor.transpose(0, 1).contiguous()}
        if tensor.ndim >= 3 and tensor.shape[-1] != tensor.shape[-2]:
            yield f"{name} transposed at its end", {**rest, name: tensor.transpose(-1, -2).contiguous()}


def library_logits(kind, folder, name, x):
    """The logits that the library computes from a folder; None if it refuses the folder or does not load all of it."""
    try:
        if kind == "timm":
            model = timm.create_model(f"local-dir:{folder}", pretrained=True)
            state = load_file(os.path.join(folder, "model.safetensors"))
            model.load_state_dict(state, strict=True)
        else:
            model, info = transformers_names()[name][0].from_pretrained(folder, output_loading_info=True)
            if info["missing_keys"] or info["mismatched_keys"] or info["unexpected_keys"]:
                return None
        return logits_of(model.eval(), x)
    except Exception:
        return None


def our_logits(binary, folder):
    out = os.path.join(folder, "out.safetensors")
    call(binary, "import", folder, "--output", out)
    done = call(binary, "classify", out, os.path.join(folder, "image.png"), "--format", "jsonl", "--logits")
    os.remove(out)
    return torch.tensor(json.loads(done.stdout)["logits"])


def mutate(binary, folder, kind, name, kwargs=None):
    """Counts the results of a model's alterations, and lists those that changed the logits silently."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    if kind == "timm":
        write_timm(randomize(timm.create_model(name, num_classes=CLASSES, **kwargs)), folder)
    elif check_transformers(binary, folder, name)[0] != "equal":
        return collections.Counter(failed=1), [f"{name}: not equal to begin with"]
    weights_path, config_path = os.path.join(folder, "model.safetensors"), os.path.join(folder, "config.json")
    weights, config = load_file(weights_path), json.load(open(config_path))
    side = Image.open(os.path.join(folder, "image.png")).size
    x = image(folder, side[1], side[0])
    counts, wrong = collections.Counter(), []
    first = verify(binary, folder, folder)
    if first[0] != "equal":
        return collections.Counter(failed=1), [f"{name}: not equal to begin with: {first[1]}"]
    changes = [(what, new, None) for what, new in changed_weights(weights)]
    changes += [(what, None, new) for what, new in changed_configs(config)]
    for what, new_weights, new_config in changes:
        save_file(new_weights or weights, weights_path, metadata={"format": "pt"})
        json.dump(new_config or config, open(config_path, "w"))
        verdict, why = verify(binary, folder, folder)
        if verdict == "DIFFERENT":
            theirs = library_logits(kind, folder, name, x)
            if theirs is not None and len(theirs) == CLASSES:
                ours = our_logits(binary, folder)
                gap = (ours - theirs).abs().max() / theirs.abs().max()
                verdict = "equal to the library's change" if gap < float(TOLERANCE) else verdict
        counts[verdict] += 1
        if verdict == "DIFFERENT":
            wrong.append(f"{name}: {what}: {why}")
    return counts, wrong


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("out_dir")
    args.add_argument("--vitrine", required=True, metavar="BINARY")
    args.add_argument("--only", nargs="+", default=[], metavar="PART", help="names that contain one of these")
    args.add_argument("--libraries", nargs="+", default=["timm", "transformers", "torchvision"])
    args.add_argument("--mutate", action="store_true")
    args = args.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    hf.utils.logging.set_verbosity_error()
    hf.utils.logging.disable_progress_bar()
    if args.mutate:
        return main_mutate(args)
    checks = {"timm": (timm_names, check_timm), "transformers": (transformers_names, check_transformers),
              "torchvision": (torchvision_names, check_torchvision)}
    totals = {library: collections.Counter() for library in args.libraries}
    for library in args.libraries:
        names, check = checks[library]
        for name in names():
            if args.only and not any(part in name for part in args.only):
                continue
            folder = os.path.join(args.out_dir, name)
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
            try:
                verdict, why = check(args.vitrine, folder, name)
            except Exception as e:
                verdict, why = "failed", f"{type(e).__name__}: {e}"[:160]
            totals[library][verdict] += 1
            print(f"{library:14}{name:48}{verdict:10} {why[-230:]}", flush=True)
            if verdict != "DIFFERENT":
                shutil.rmtree(folder)
    for library, counts in totals.items():
        print(library, dict(counts))
    sys.exit(any(counts["DIFFERENT"] for counts in totals.values()))


def main_mutate(args):
    wrong = []
    cases = [("timm", name, kwargs) for name, kwargs in MUTATED["timm"]] + [("transformers", n, None) for n in MUTATED["transformers"]]
    for kind, name, kwargs in cases:
        if kind not in args.libraries or args.only and not any(part in name for part in args.only):
            continue
        counts, faults = mutate(args.vitrine, os.path.join(args.out_dir, name), kind, name, kwargs)
        print(f"{name:48}{dict(counts)}", flush=True)
        for fault in faults:
            print(f"  {fault}", flush=True)
        wrong += faults
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
