"""Writes the fixtures of small backbones: a library's own files, an input, and the library's results.

Each fixture is a folder with `config.json`, `weights.safetensors`, and `io.safetensors`, which holds `input`, `features`
(the tokens after the last norm), `pooled` (the vector before the head), and `logits` if there is a head. With `_48` in
the name, the input and the results are those of images of 48 pixels, for which the library resamples positions. With
`_patch4` in the name, the library has resized the patch embedding to patches of 4 pixels.

Run:  pip install torch timm transformers safetensors
      python make_backbones.py ../fixtures [NAME...]
"""
import json
import os
import sys
from functools import partial

import timm
import torch
import transformers as hf
from safetensors.torch import save_file
from timm.layers import LayerNorm
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8}
SMALL = {**SIZES, "hidden_size": 32, "num_attention_heads": 2}
CLASSES = {"num_labels": 10}
SIGLIP = {"vision_config": {**SMALL, "intermediate_size": 80},
          "text_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                          "vocab_size": 8}}
HUGGING_FACE = {
    "hf_dinov2": lambda: hf.Dinov2Model(hf.Dinov2Config(**SMALL)),
    "hf_dinov2_registers": lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**SIZES, num_register_tokens=4)),
    # The classifier reads the class token and the mean of the patches, and the MLPs have gates.
    "hf_dinov2_classifier": lambda: hf.Dinov2WithRegistersForImageClassification(
        hf.Dinov2WithRegistersConfig(**SMALL, **CLASSES, num_register_tokens=2, use_swiglu_ffn=True)),
    "hf_dinov3": lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**SMALL, intermediate_size=96, num_register_tokens=4)),
    "hf_dinov3_plus": lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(
        **SMALL, intermediate_size=64, num_register_tokens=4, use_gated_mlp=True, hidden_act="silu")),
    "hf_clip": lambda: hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**SMALL, intermediate_size=96, projection_dim=12)),
    "hf_beit": lambda: hf.BeitForImageClassification(hf.BeitConfig(
        **SMALL, **CLASSES, intermediate_size=96, use_relative_position_bias=True, layer_scale_init_value=0.1)),
    "hf_mae": lambda: hf.ViTMAEForPreTraining(hf.ViTMAEConfig(
        **SMALL, intermediate_size=96, decoder_num_attention_heads=1, decoder_hidden_size=8, decoder_num_hidden_layers=1,
        decoder_intermediate_size=8, mask_ratio=0.0)),
    # The exact GELU: approximations differ between implementations.
    "hf_siglip": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**SIZES, intermediate_size=192, hidden_act="gelu")),
    "hf_siglip_classifier": lambda: hf.SiglipForImageClassification(hf.SiglipConfig(**SIGLIP, **CLASSES)),
}
# Fixtures with results at another image size, and with patches of other sides.
RESIZED = {"hf_dinov2", "hf_dinov3"}
REPATCHED = {"timm_flexi": (4, 16)}

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 3, "num_classes": 10}
DINO_V3 = {**TINY, "init_values": 1e-5, "use_rot_pos_emb": True, "use_abs_pos_emb": False, "rope_type": "dinov3",
           "rope_temperature": 100, "rope_rotate_half": True, "num_reg_tokens": 4, "use_fc_norm": False, "norm_eps": 1e-5}
TIMM = {
    # As vit_small_patch16_dinov3_qkvb and vit_small_plus_patch16_dinov3 are; the second with the pooling of its authors.
    "timm_dinov3": (Eva, {**DINO_V3, "qkv_bias": True}),
    "timm_dinov3_plus": (Eva, {**DINO_V3, "qkv_bias": False, "swiglu_mlp": True, "swiglu_align_to": 8, "global_pool": "token"}),
    # As vit_small_patch16_rope_224 is.
    "timm_vit_rope": (Eva, {**TINY, "attn_type": "rope", "init_values": 1e-5, "global_pool": "token", "use_abs_pos_emb": False,
                            "use_rot_pos_emb": True, "rope_grid_indexing": "xy", "rope_temperature": 100.0}),
    # As vit_small_patch16_rope_mixed_ape_224 is.
    "timm_vit_rope_mixed": (Eva, {**TINY, "attn_type": "rope", "init_values": 1e-5, "global_pool": "token", "no_embed_class": True,
                                  "use_rot_pos_emb": True, "rope_type": "mixed", "rope_grid_indexing": "xy",
                                  "rope_temperature": 10.0}),
    # As swinv2_base_window12to16_192to256 is.
    "timm_swinv2_enlarged": (SwinTransformerV2, {
        "img_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 8,
        "mlp_ratio": 2, "num_classes": 10, "pretrained_window_sizes": [6, 4]}),
    # As eva02_small_patch14_336 is, whose positions are those of 224 pixels.
    "timm_eva02_scaled": (Eva, {**TINY, "swiglu_mlp": True, "use_rot_pos_emb": True, "ref_feat_shape": [2, 3]}),
    # As eva02_tiny_patch14_224 is.
    "timm_eva02": (Eva, {**TINY, "swiglu_mlp": True, "use_rot_pos_emb": True, "ref_feat_shape": [4, 4]}),
    # As eva02_base_patch14_224 is.
    "timm_eva02_base": (Eva, {**TINY, "swiglu_mlp": True, "scale_mlp": True, "qkv_fused": False, "use_rot_pos_emb": True,
                              "ref_feat_shape": [4, 4]}),
    # As beit_base_patch16_224 is.
    "timm_beit": (Beit, {**TINY, "use_abs_pos_emb": False, "use_rel_pos_bias": True, "init_values": 0.1}),
    "timm_clip": (VisionTransformer, {**TINY, "pre_norm": True, "norm_eps": 1e-5, "act_layer": "quick_gelu"}),
    # As flexivit_small is.
    "timm_flexi": (VisionTransformer, {**TINY, "no_embed_class": True}),
    "timm_siglip": (VisionTransformer, {**TINY, "global_pool": "map", "class_token": False, "act_layer": "gelu_tanh"}),
    "timm_siglip_gap": (VisionTransformer, {**TINY, "global_pool": "avg", "class_token": False, "fc_norm": False}),
    # As vit_giant_patch14_dinov2 is.
    "timm_swiglu": (VisionTransformer, {**TINY, "init_values": 1e-5, "mlp_ratio": 5, "mlp_layer": "SwiGLUPacked",
                                        "act_layer": "silu"}),
}


def randomize(model):
    torch.manual_seed(12)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.1 if parameter.ndim == 1 else 1 / parameter[0].numel() ** 0.5
            parameter.add_(torch.randn_like(parameter) * spread)
    return model.eval()


def results(name, model, pixels):
    """The tokens after the last norm, the vector before the head, and the logits or None."""
    out = None if name == "hf_mae" else model(pixels)
    if name == "hf_clip":
        tower = model.vision_model
        tokens = tower.post_layernorm(out.last_hidden_state)
        return tokens, tokens[:, 0], out.image_embeds
    if name == "hf_mae":  # without a mask, but with the patches in a random order
        patches = (pixels.shape[-1] // model.config.patch_size) ** 2
        noise = torch.arange(patches, dtype=torch.float32).repeat(len(pixels), 1)
        tokens = model.vit(pixels, noise=noise).last_hidden_state
        return tokens, tokens[:, 0], None
    if name == "hf_siglip_classifier":
        tokens = model.vision_model(pixels).last_hidden_state
        return tokens, tokens.mean(dim=1), out.logits
    if name == "hf_dinov2_classifier":
        tokens = model.dinov2_with_registers(pixels).last_hidden_state
        return tokens, torch.cat([tokens[:, 0], tokens[:, 3:].mean(dim=1)], dim=1), out.logits
    if name == "hf_beit":
        tokens = model.beit(pixels)
        return tokens.last_hidden_state, tokens.pooler_output, out.logits
    return out.last_hidden_state, out.pooler_output, None


def hugging_face(name, folder):
    model = randomize(HUGGING_FACE[name]())
    io = {}
    for side in (32, 48) if name in RESIZED else (32,):
        pixels = torch.randn(2, 3, side, side)
        values = dict(zip(("features", "pooled", "logits"), results(name, model, pixels)), input=pixels)
        resized = "" if side == 32 else f"_{side}"
        io.update({key + resized: value for key, value in values.items() if value is not None})
    model.save_pretrained(folder)
    os.replace(os.path.join(folder, "model.safetensors"), os.path.join(folder, "weights.safetensors"))
    return io


def of_timm(name, folder):
    cls, arguments = TIMM[name]
    made = {key: value for key, value in arguments.items() if key != "norm_eps"}
    if "norm_eps" in arguments:
        made["norm_layer"] = partial(LayerNorm, eps=arguments["norm_eps"])
    if made.get("mlp_layer"):
        made["mlp_layer"] = timm.layers.SwiGLUPacked
    model = randomize(cls(**made))
    pixels = torch.randn(2, 3, 32, 32)
    io = {}
    for side in (None, *REPATCHED.get(name, ())):
        of_side, ending = model, ""
        if side:
            of_side, ending = cls(**{**made, "patch_size": side}).eval(), f"_patch{side}"
            of_side.load_state_dict(checkpoint_filter_fn(model.state_dict(), of_side))
        features = of_side.forward_features(pixels)
        io |= {"input" + ending: pixels, "features" + ending: features, "logits" + ending: of_side(pixels),
               "pooled" + ending: of_side.forward_head(features, pre_logits=True)}
    save_file(model.state_dict(), os.path.join(folder, "weights.safetensors"))
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"model": cls.__name__, **arguments}, file, indent=2)
        file.write("\n")
    return io


def main():
    for name in sys.argv[2:] or [*HUGGING_FACE, *TIMM]:
        folder = os.path.join(sys.argv[1], name)
        os.makedirs(folder, exist_ok=True)
        with torch.no_grad():
            io = hugging_face(name, folder) if name in HUGGING_FACE else of_timm(name, folder)
        io = {key: value.contiguous().clone() for key, value in io.items()}
        save_file(io, os.path.join(folder, "io.safetensors"))
        print(name, {key: list(value.shape) for key, value in io.items()})


if __name__ == "__main__":
    main()
