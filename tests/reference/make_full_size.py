"""Makes full-size models of timm, torchvision, transformers, and Microsoft's Swin with random, seeded weights.

Nothing is downloaded. Each model gets a folder with the files that a user of its library has, and with the library's
own results for the two photos in OUT_DIR/photos:

  expected.json         photos, labels (or null), logits and probabilities, one row per photo
  expected.safetensors  backbones without a classifier: input, features (and pooled)

Run:  python make_full_size.py OUT_DIR [--only NAME...]
"""
import argparse
import json
import os
import shutil
import zlib

import torch
import timm
import torchvision
import transformers as hf
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models._hub import save_for_hf

HERE = os.path.dirname(os.path.abspath(__file__))
PHOTO = os.path.join(HERE, "..", "..", "datasets", "tests", "fixtures", "preprocess", "photo.png")
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
LABELS = {i: f"thing {i}" for i in range(1000)}
LABELED = {"id2label": LABELS, "label2id": {name: i for i, name in LABELS.items()}}
# The form in which image processors were saved until 2022, which most files on the hub still have.
OLD_PREPROCESSOR = {"do_normalize": True, "do_resize": True, "feature_extractor_type": "ViTFeatureExtractor",
                    "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2, "size": 224}

# case -> (timm's name, classes)
TIMM = {
    "timm_vit_tiny": ("vit_tiny_patch16_224", 1000),
    "timm_vit_small": ("vit_small_patch16_224", 1000),
    "timm_vit_base": ("vit_base_patch16_224", 1000),
    "timm_deit_distilled": ("deit_tiny_distilled_patch16_224", 1000),
    "timm_dinov2_reg4": ("vit_small_patch14_reg4_dinov2", 10),
    "timm_dinov3": ("vit_small_patch16_dinov3", 1000),
    "timm_dinov3_plus": ("vit_small_plus_patch16_dinov3_qkvb", 1000),
    "timm_rope": ("vit_small_patch16_rope_224", 1000),
    "timm_rope_mixed": ("vit_small_patch16_rope_mixed_224", 1000),
    "timm_eva02": ("eva02_small_patch14_336", 1000),
    "timm_beit": ("beit_base_patch16_224", 1000),
    "timm_clip": ("vit_base_patch16_clip_224", 1000),
    "timm_clip_quickgelu": ("vit_base_patch16_clip_quickgelu_224", 1000),
    "timm_siglip": ("vit_base_patch16_siglip_224", 1000),
    "timm_siglip_gap": ("vit_base_patch16_siglip_gap_224", 1000),
    "timm_cait": ("cait_xxs24_224", 1000),
    "timm_swin": ("swin_tiny_patch4_window7_224", 1000),
    "timm_swinv2": ("swinv2_tiny_window8_256", 1000),
    "timm_swinv2_enlarged": ("swinv2_base_window12to16_192to256", 1000),
    "ms_swin": ("swin_tiny_patch4_window7_224", 1000),
}

# case -> (constructor, the weights whose transforms belong to it)
TORCHVISION = {
    "torchvision_vit_b_16": (torchvision.models.vit_b_16, torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1),
    "torchvision_swin_t": (torchvision.models.swin_t, torchvision.models.Swin_T_Weights.IMAGENET1K_V1),
    "torchvision_swin_v2_t": (torchvision.models.swin_v2_t, torchvision.models.Swin_V2_T_Weights.IMAGENET1K_V1),
}

TINY = {"hidden_size": 192, "intermediate_size": 768, "num_attention_heads": 3}
SMALL = {"hidden_size": 384, "num_attention_heads": 6, "image_size": 518, "patch_size": 14}

# case -> (model class, configuration, image processor)
HUGGING_FACE = {
    "hf_vit": (hf.ViTForImageClassification, hf.ViTConfig(**LABELED), hf.ViTImageProcessor()),
    "hf_vit_sharded": (hf.ViTForImageClassification, hf.ViTConfig(**TINY, **LABELED), hf.ViTImageProcessor()),
    "hf_vit_bin": (hf.ViTForImageClassification, hf.ViTConfig(**TINY, **LABELED), OLD_PREPROCESSOR),
    "hf_deit_distilled": (hf.DeiTForImageClassificationWithTeacher, hf.DeiTConfig(**TINY, **LABELED),
                          hf.DeiTImageProcessor(**IMAGENET)),
    "hf_swin": (hf.SwinForImageClassification, hf.SwinConfig(**LABELED),
                hf.ViTImageProcessor(resample=3, **IMAGENET)),
    "hf_swinv2": (hf.Swinv2ForImageClassification, hf.Swinv2Config(image_size=256, window_size=8, **LABELED),
                  hf.ViTImageProcessor(size={"height": 256, "width": 256}, resample=3, **IMAGENET)),
}

# Windows of 12 tokens that were enlarged to 16.
HUGGING_FACE["hf_swinv2_enlarged"] = (
    hf.Swinv2ForImageClassification,
    hf.Swinv2Config(image_size=256, window_size=16, pretrained_window_sizes=[12, 12, 12, 6], **LABELED),
    HUGGING_FACE["hf_swinv2"][2])

# Models with positions for 518 pixels and preprocessing for 224, for which transformers resamples the positions.
DINO_PROCESSOR = hf.BitImageProcessor(size={"shortest_edge": 256}, crop_size=224, resample=3, **IMAGENET)
HUGGING_FACE |= {
    "hf_dinov2_224": (hf.Dinov2ForImageClassification, hf.Dinov2Config(**SMALL, **LABELED), DINO_PROCESSOR),
    "hf_dinov2_registers_224": (hf.Dinov2WithRegistersForImageClassification,
                                hf.Dinov2WithRegistersConfig(**SMALL, **LABELED, use_swiglu_ffn=True), DINO_PROCESSOR),
    "hf_beit": (hf.BeitForImageClassification, hf.BeitConfig(use_relative_position_bias=True, **LABELED), hf.BeitImageProcessor()),
    "hf_clip": (hf.CLIPVisionModelWithProjection, hf.CLIPVisionConfig(projection_dim=1000), hf.CLIPImageProcessor()),
    "hf_siglip_classifier": (hf.SiglipForImageClassification, hf.SiglipConfig(**LABELED), hf.SiglipImageProcessor()),
}

# The models that can be imported and not exported, and the options of `vitrine import` that a case needs.
READ_ONLY = {"timm_beit", "hf_beit", "timm_dinov3", "timm_dinov3_plus", "timm_rope", "timm_clip", "timm_clip_quickgelu", "timm_siglip_gap",
             "timm_rope_mixed", "timm_eva02", "hf_dinov2_224", "hf_dinov2_registers_224", "hf_clip", "hf_siglip_classifier"}
OPTIONS = {"hf_dinov2_224": ["--image-size", "224"], "hf_dinov2_registers_224": ["--image-size", "224"]}

# backbones without a classifier: case -> (model class, configuration)
HEADLESS = {
    "hf_dinov2": (hf.Dinov2Model, hf.Dinov2Config(**SMALL)),
    "hf_dinov2_registers": (hf.Dinov2WithRegistersModel, hf.Dinov2WithRegistersConfig(num_register_tokens=4, **SMALL)),
    "hf_siglip": (hf.SiglipVisionModel, hf.SiglipVisionConfig(num_hidden_layers=4)),
}


def is_embedding(name):
    """Whether a parameter belongs to the embedding, which makes the tokens of the first block."""
    parts = ("patch_embed.proj.", "embeddings.", "conv_proj.", "features.0.0.")
    tokens = ("cls_token", "class_token", "dist_token", "reg_token", "pos_embed", "pos_embedding")
    return name.endswith(tokens) or (any(p in name for p in parts) and ".norm." not in name)


def randomize(model, seed):
    """Draws weights so large that a wrong key or transpose shows, and tokens so small that a wrong epsilon does."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            n = torch.randn(p.shape, generator=g)
            leaf = name.rsplit(".", 1)[-1]
            if leaf in ("gamma", "gamma_1", "gamma_2", "lambda1"):  # LayerScale
                p.copy_(0.5 + 0.1 * n)
            elif p.ndim >= 2 and leaf in ("weight", "in_proj_weight"):
                p.copy_(n / p[0].numel() ** 0.5)
            elif p.ndim == 1 and leaf == "weight":
                p.copy_(1.0 + 0.1 * n)
            elif p.ndim == 1:
                p.copy_(0.1 * n)
            else:
                p.copy_(0.5 * n)
            if is_embedding(name):
                p *= 0.01
    return model.eval()


def build(name):
    """The model of a case, before its weights are randomized."""
    if name in TIMM:
        return timm.create_model(TIMM[name][0], num_classes=TIMM[name][1])
    if name in TORCHVISION:
        return TORCHVISION[name][0]()
    model, config = {**HUGGING_FACE, **HEADLESS}[name][:2]
    return model(config)


def pixels(name, folder, model, photos):
    """The photos after the library's own preprocessing, each with a batch axis of one."""
    images = [Image.open(p).convert("RGB") for p in photos]
    if name in HUGGING_FACE:
        processor = hf.AutoImageProcessor.from_pretrained(folder)
        return [processor(images=i, return_tensors="pt")["pixel_values"] for i in images]
    if name in TORCHVISION:
        transform = TORCHVISION[name][1].transforms()
    else:
        config = timm.data.resolve_model_data_config(model)
        if name == "ms_swin":
            config["crop_pct"] = 224 / 256  # as in Microsoft's data/build.py
        transform = timm.data.create_transform(**config)
    return [transform(i)[None] for i in images]


def logits(model, xs):
    with torch.no_grad():
        outs = [model(x) for x in xs]
    return torch.cat([getattr(o, "logits", getattr(o, "image_embeds", o)) for o in outs])


def scale_head(model, xs, classes):
    """Scales the head so that logits depend on the pixels: it removes most of their mean over the photos, and gives
    them a deviation of 2, so that the classes are distinct but none has almost all of the probability."""
    heads = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m.out_features == classes]
    with torch.no_grad():
        shared = logits(model, xs).mean(dim=0)
        for head in heads:
            if head.bias is not None:
                head.bias -= 0.8 * shared
        factor = 2.0 / logits(model, xs).std(dim=1).mean()
        for head in heads:
            head.weight *= factor
            if head.bias is not None:
                head.bias *= factor


def microsoft(model):
    """The state of timm's Swin under the names of Microsoft's repository, with the buffers that its files contain."""
    state = {}
    for key, value in model.state_dict().items():
        if ".downsample." in key:
            _, stage, rest = key.split(".", 2)
            key = f"layers.{int(stage) - 1}.{rest}"
        state[key.replace("head.fc.", "head.")] = value
    for key, value in model.named_buffers():
        if key.endswith(("relative_position_index", "attn_mask")):
            state[key] = value
    return state


def save_weights(name, model, folder):
    if name == "ms_swin":
        torch.save({"model": microsoft(model)}, os.path.join(folder, "ms_swin_tiny.pth"))
    elif name in TIMM:
        save_for_hf(model, folder, safe_serialization=True)
    elif name in TORCHVISION:
        torch.save(model.state_dict(), os.path.join(folder, name.removeprefix("torchvision_") + ".pth"))
    else:
        model.save_pretrained(folder, max_shard_size="5MB" if name == "hf_vit_sharded" else "50GB")
    if name == "hf_vit_bin":
        path = os.path.join(folder, "model.safetensors")
        torch.save(load_file(path), os.path.join(folder, "pytorch_model.bin"))
        os.remove(path)
    processor = HUGGING_FACE[name][2] if name in HUGGING_FACE else None
    if isinstance(processor, dict):
        with open(os.path.join(folder, "preprocessor_config.json"), "w") as fh:
            json.dump(processor, fh, indent=2)
    elif processor:
        processor.save_pretrained(folder)


def weights_path(name, folder):
    """The argument of `vitrine import`: the folder, or the file of weights if there is no other file."""
    if name in TORCHVISION or name == "ms_swin":
        return next(os.path.join(folder, f) for f in sorted(os.listdir(folder)) if f.endswith(".pth"))
    return folder


def make_photos(folder):
    """Writes the repository's photo and an enlarged crop of it with another shape, and returns both paths."""
    os.makedirs(folder, exist_ok=True)
    paths = [os.path.join(folder, f) for f in ("photo.png", "photo_500x375.png")]
    shutil.copyfile(PHOTO, paths[0])
    photo = Image.open(PHOTO).convert("RGB")
    width = photo.height * 4 // 3
    photo.crop((photo.width - width, 0, photo.width, photo.height)).resize((500, 375), Image.LANCZOS).save(paths[1])
    return paths


def make_classifier(name, folder, photos):
    model = randomize(build(name), zlib.crc32(name.encode()))
    classes = TIMM[name][1] if name in TIMM else 1000
    if name in HUGGING_FACE:  # the preprocessing is read back from the folder
        save_weights(name, model, folder)
    xs = pixels(name, folder, model, photos)
    scale_head(model, xs, classes)
    save_weights(name, model, folder)
    out = logits(model, xs)
    p = out.softmax(dim=1)
    expected = {"photos": [os.path.basename(f) for f in photos],
                "labels": list(LABELS.values()) if name in HUGGING_FACE and name != "hf_clip" else None,
                "logits": out.tolist(), "probabilities": p.tolist()}
    with open(os.path.join(folder, "expected.json"), "w") as fh:
        json.dump(expected, fh)
    print(f"{name}: logits std {out.std(dim=1).mean():.2f}, best p {p.max():.3f}, "
          f"between the photos {(out[0] - out[1]).abs().max():.2f}", flush=True)


def make_headless(name, folder):
    seed = zlib.crc32(name.encode())
    model = randomize(build(name), seed)
    model.save_pretrained(folder)
    size = model.config.image_size
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        out = model(x)
    save_file({"input": x, "features": out.last_hidden_state.contiguous(), "pooled": out.pooler_output.clone()},
              os.path.join(folder, "expected.safetensors"))
    print(f"{name}: features {list(out.last_hidden_state.shape)}, std {out.last_hidden_state.std():.2f}", flush=True)


def main():
    names = [*TIMM, *TORCHVISION, *HUGGING_FACE, *HEADLESS]
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("out_dir")
    args.add_argument("--only", nargs="+", metavar="NAME", choices=names, default=names)
    args = args.parse_args()
    torch.set_num_threads(1)
    hf.utils.logging.disable_progress_bar()
    photos = make_photos(os.path.join(args.out_dir, "photos"))
    for name in args.only:
        folder = os.path.join(args.out_dir, name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        if name in HEADLESS:
            make_headless(name, folder)
        else:
            make_classifier(name, folder, photos)


if __name__ == "__main__":
    main()
    print({m.__name__: m.__version__ for m in (torch, timm, torchvision, hf)})
