"""Writes the fixtures of small backbones without a classifier: transformers' own files, an input, and its features.

Run:  pip install torch transformers safetensors
      python make_backbones.py ../fixtures
"""
import os
import sys

import torch
import transformers as hf
from safetensors.torch import save_file

SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8}
MODELS = {
    "hf_dinov2_registers": lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**SIZES, num_register_tokens=4)),
    # The exact GELU: approximations differ between implementations.
    "hf_siglip": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**SIZES, intermediate_size=192, hidden_act="gelu")),
}

for name, make in MODELS.items():
    torch.manual_seed(12)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.1 if parameter.ndim == 1 else 1 / parameter[0].numel() ** 0.5
            parameter.add_(torch.randn_like(parameter) * spread)
        pixels = torch.randn(2, 3, 32, 32)
        features = model(pixels).last_hidden_state
    folder = os.path.join(sys.argv[1], name)
    model.save_pretrained(folder)
    os.replace(os.path.join(folder, "model.safetensors"), os.path.join(folder, "weights.safetensors"))
    save_file({"input": pixels, "features": features.contiguous()}, os.path.join(folder, "io.safetensors"))
    print(name, sum(p.numel() for p in model.parameters()), "parameters, features of size", features.abs().mean().item())
