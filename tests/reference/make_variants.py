"""Writes tests/fixtures/variants: small models with one part each that no library has in this form, written out in
PyTorch, with their weights, logits and gradients.

Every file holds one model: its configuration for vitrine in the metadata, `input`, `logits`, and for each parameter,
under the name that vitrine gives it, `weight.NAME` and `grad.NAME` (the gradient of the mean of the squared logits).

Run:  pip install torch numpy safetensors
      python make_variants.py ../fixtures/variants
"""
import json
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

# Sizes of all models: an image of 8 by 12 pixels with 2 channels, in patches of 2.
HEIGHT, WIDTH, CHANNELS, PATCH = 8, 12, 2, 2
ROWS, COLUMNS = HEIGHT // PATCH, WIDTH // PATCH
DIM, HEADS, CLASSES, BATCH = 12, 3, 5, 2
BASE = {
    "image_size": [HEIGHT, WIDTH],
    "channels": CHANNELS,
    "num_classes": CLASSES,
    "patch_size": PATCH,
    "embed_dim": DIM,
    "depth": 2,
    "num_heads": HEADS,
    "mlp_ratio": 2.0,
    "class_token": False,
    "position": "none",
    "pool": "mean",
}


class SqueezeExcitation(nn.Module):
    def __init__(self, dim, reduction):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, dim // reduction), nn.Linear(dim // reduction, dim)

    def forward(self, x):  # [batch, places, dim]
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(x.mean(1, keepdim=True)))))


class Spatial(nn.Module):
    """The spatial half of CBAM, on tokens."""

    def __init__(self):
        super().__init__()
        conv = nn.Conv2d(2, 1, 7, padding=3)
        self.conv, self.conv_bias = conv.weight, conv.bias

    def forward(self, x):
        places = torch.cat([x.mean(2, keepdim=True), x.amax(2, keepdim=True)], 2)
        places = places.transpose(1, 2).reshape(len(x), 2, ROWS, COLUMNS)
        gate = F.conv2d(places, self.conv, self.conv_bias, padding=3)
        return x * torch.sigmoid(gate).reshape(len(x), -1, 1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x, position=None, mask=None):
        batch, tokens, _ = x.shape
        placed = x if position is None else x + position
        weight, bias = self.qkv.weight.chunk(3), self.qkv.bias.chunk(3)
        q, k, v = (
            F.linear(part, weight[i], bias[i]).reshape(batch, tokens, HEADS, -1).transpose(1, 2)
            for i, part in enumerate([placed, placed, x])
        )
        scores = q @ k.transpose(2, 3) * (DIM // HEADS) ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return self.proj((scores.softmax(3) @ v).transpose(1, 2).reshape(batch, tokens, DIM))


class Block(nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM, 1e-6), nn.LayerNorm(DIM, 1e-6)
        self.attn = Attention()
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(DIM, 2 * DIM), "fc2": nn.Linear(2 * DIM, DIM)})
        if gate:
            self.channel_attention = gate()

    def forward(self, x, position=None, mask=None):
        mixed = self.norm1(x)
        mixed = self.attn(mixed, position, mask(mixed) if callable(mask) else mask)
        if hasattr(self, "channel_attention"):
            mixed = self.channel_attention(mixed)
        x = x + mixed
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(CHANNELS, DIM, PATCH, PATCH)

    def forward(self, images):
        return self.proj(images).flatten(2).transpose(1, 2)


class Convolutions(nn.Module):
    """Two layers of the Compact Transformer's tokenizer, each followed by a gate on its map."""

    def __init__(self, gates):
        super().__init__()
        convolution = lambda inputs, outputs: nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.layers = nn.ModuleList([convolution(CHANNELS, DIM)])
        self.gates = nn.ModuleList(gates)

    def forward(self, images):
        map = images
        for layer, gate in zip(self.layers, self.gates):
            map = F.max_pool2d(F.relu(layer(map)), 3, 2, 1)
            tokens = gate(map.flatten(2).transpose(1, 2))
            map = tokens.transpose(1, 2).reshape(map.shape)
        return map.flatten(2).transpose(1, 2)


class Peg(nn.Module):
    """Conditional positions: Chu et al. 2021, figure 2."""

    def __init__(self):
        super().__init__()
        conv = nn.Conv2d(DIM, DIM, 3, padding=1, groups=DIM)
        self.conv, self.conv_bias = conv.weight, conv.bias

    def forward(self, x):
        map = x.transpose(1, 2).reshape(len(x), DIM, ROWS, COLUMNS)
        return x + F.conv2d(map, self.conv, self.conv_bias, padding=1, groups=DIM).flatten(2).transpose(1, 2)


class CoordinateMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.output = nn.Linear(2, DIM), nn.Linear(DIM, DIM)

    def forward(self):
        centers = lambda count: (torch.arange(count) * 2 + 1) / count - 1
        grid = torch.cartesian_prod(centers(ROWS), centers(COLUMNS))
        return self.output(F.relu(self.hidden(grid)))[None]


class Model(nn.Module):
    def __init__(self, tokens=None, gate=None, peg=None, network=None, place="tokens", mask=None):
        super().__init__()
        self.patch_embed = tokens or Patches()
        self.blocks = nn.ModuleList([Block(gate), Block(gate)])
        self.fc_norm, self.head = nn.LayerNorm(DIM, 1e-6), nn.Linear(DIM, CLASSES)
        if peg:
            self.conditional = peg
        if network:
            self.position = nn.ModuleDict({"network": network})
        self.place, self.mask = place, mask

    def forward(self, images):
        x = self.patch_embed(images)
        position = self.position["network"]() if hasattr(self, "position") else None
        if position is not None and self.place == "tokens":
            x, position = x + position, None
        for index, block in enumerate(self.blocks):
            first = index == 0
            x = block(x, position if first or self.place == "query_key" else None, self.mask)
            if first and hasattr(self, "conditional"):
                x = self.conditional(x)
        return self.head(self.fc_norm(x.mean(1)))


def gate(kind, place, reduction=None):
    fields = {"kind": kind, "place": place} | ({"reduction": reduction} if reduction else {})
    return {"channel_attention": fields}


CASES = {
    "spatial": (gate("spatial", "mixer"), lambda: Model(gate=Spatial)),
    "gated_maps": (
        gate("squeeze_excitation", "tokenizer", 3)
        | {"tokenizer": {"convolution": {"layers": 1, "kernel_size": 3}}},
        lambda: Model(tokens=Convolutions([SqueezeExcitation(DIM, 3)])),
    ),
    "conditional": ({"position": "conditional"}, lambda: Model(peg=Peg())),
    "coordinate_mlp": ({"position": "coordinate_mlp"}, lambda: Model(network=CoordinateMlp())),
    "query_key": (
        {"position": "coordinate_mlp", "position_place": "query_key"},
        lambda: Model(network=CoordinateMlp(), place="query_key"),
    ),
    "first_query_key": (
        {"position": "coordinate_mlp", "position_place": "first_query_key"},
        lambda: Model(network=CoordinateMlp(), place="first_query_key"),
    ),
}


def write(folder, name, changes, model):
    for parameter in model.parameters():  # weights large enough that every part matters
        nn.init.normal_(parameter, std=0.3)
    model = model.double()
    images = torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH, dtype=torch.float64)
    logits = model(images)
    (logits**2).mean().backward()
    arrays = {"input": images, "logits": logits.detach()}
    for key, parameter in model.named_parameters():
        arrays[f"weight.{key}"], arrays[f"grad.{key}"] = parameter.detach(), parameter.grad
    arrays = {key: array.float().contiguous() for key, array in arrays.items()}
    save_file(arrays, os.path.join(folder, f"{name}.safetensors"), {"config": json.dumps(BASE | changes)})


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    torch.set_default_dtype(torch.float64)
    for name, (changes, make) in CASES.items():
        torch.manual_seed(0)
        write(sys.argv[1], name, changes, make())
