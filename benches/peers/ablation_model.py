"""The default model of vitrine with variations, for ablate.py: residual convolutions, then attention."""
import torch
from torch import nn
from torch.nn import functional

HEAD_DIM = 32
# What a variant may change of the architecture.
DEFAULTS = {
    "stem": "whitened",  # kernels start whitened; random; or frozen-2, frozen-3: whitened kernels of that side stay so
    "stem_width": 24, "widths": [48, 96, 192], "second": [1, 1, 1],  # stages, and convolutions in each stage's branch
    "residual": True, "dirac": False, "norm_scale": True, "norm_momentum": 0.1, "gate": False,
    "depth": 1, "mlp_ratio": 2, "layer_scale": 0.1, "pool": "mean", "logit_scale": 1.0,
}


class Stage(nn.Module):
    def __init__(self, inputs, outputs, second, variant):
        super().__init__()
        norm = lambda: batch_norm(outputs, variant)
        self.conv1, self.norm1 = convolution(inputs, outputs, variant), norm()
        self.branch = nn.Sequential(*(layer for _ in range(second)
                                      for layer in (convolution(outputs, outputs, variant), norm(), nn.GELU())))
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(outputs, outputs // 8, 1), nn.ReLU(),
                                  nn.Conv2d(outputs // 8, outputs, 1), nn.Sigmoid()) if variant["gate"] and second else None
        self.residual = variant["residual"]

    def forward(self, x):
        x = functional.gelu(self.norm1(functional.max_pool2d(self.conv1(x), 2)))
        if not len(self.branch):
            return x
        y = self.branch(x)
        y = y if self.gate is None else y * self.gate(y)
        return x + y if self.residual else y


class Block(nn.Module):
    """Attention with rotary positions over rows and columns, and an MLP, each with layer scale."""

    def __init__(self, dim, variant):
        super().__init__()
        hidden = variant["mlp_ratio"] * dim
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.scale1, self.scale2 = (nn.Parameter(torch.full((dim,), variant["layer_scale"])) for _ in range(2))

    def attention(self, x, side):
        batch, tokens, dim = x.shape
        heads = lambda layer: layer(x).view(batch, tokens, -1, HEAD_DIM).transpose(1, 2)
        y = functional.scaled_dot_product_attention(rotate(heads(self.q), side), rotate(heads(self.k), side), heads(self.v))
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, dim))

    def forward(self, x, side):
        x = x + self.scale1 * self.attention(self.norm1(x), side)
        return x + self.scale2 * self.fc2(functional.gelu(self.fc1(self.norm2(x))))


def rotate(x, side):
    pairs = x.shape[-1] // 4
    places = torch.arange(side, device=x.device, dtype=torch.float32)
    angles = places[:, None] * 100.0 ** (-torch.arange(pairs, device=x.device) / pairs)
    rows, columns = angles.repeat_interleave(side, 0), angles.repeat(side, 1)
    cos = torch.cat([rows.cos()] * 2 + [columns.cos()] * 2, 1).to(x.dtype)
    sin = torch.cat([-rows.sin(), rows.sin(), -columns.sin(), columns.sin()], 1).to(x.dtype)
    a, b, c, d = x.chunk(4, -1)
    return x * cos + torch.cat([b, a, d, c], -1) * sin


class Model(nn.Module):
    def __init__(self, variant, classes, images):
        """`images`, [count, channels, side, side], are those whose patches are whitened."""
        super().__init__()
        self.variant, stem = variant, variant["stem"]
        side, frozen = 2 if stem == "frozen-2" else 3, stem.startswith("frozen")
        self.pad = (0, 1, 0, 1) if side == 2 else (1, 1, 1, 1)
        channels = images.shape[1]
        width = min(variant["stem_width"], 2 * channels * side**2) if frozen else variant["stem_width"]
        self.stem = nn.Conv2d(channels, width, side, bias=frozen)
        self.stem_norm = nn.Identity() if frozen else batch_norm(width, variant)
        if stem != "random":
            whiten(self.stem, images[:5000])
        if frozen:
            nn.init.zeros_(self.stem.bias)
            self.stem.weight.requires_grad = False
        widths = [width, *variant["widths"]]
        self.stages = nn.ModuleList(Stage(*pair, second, variant) for *pair, second in zip(widths, widths[1:], variant["second"]))
        self.blocks = nn.ModuleList(Block(widths[-1], variant) for _ in range(variant["depth"]))
        self.norm = nn.LayerNorm(widths[-1], eps=1e-6) if variant["pool"] == "mean" else nn.Identity()
        self.head = nn.Linear(widths[-1], classes)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(self, images):
        x = functional.gelu(self.stem_norm(self.stem(functional.pad(images, self.pad))))
        for stage in self.stages:
            x = stage(x)
        side, x = x.shape[2], x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, side)
        pooled = x.mean(1) if self.variant["pool"] == "mean" else x.amax(1)
        return self.head(self.norm(pooled)) * self.variant["logit_scale"]


def convolution(inputs, outputs, variant):
    made = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    if variant["dirac"]:
        nn.init.dirac_(made.weight.data[:inputs])
    return made


def batch_norm(channels, variant):
    made = nn.BatchNorm2d(channels, eps=1e-6, momentum=variant["norm_momentum"])
    made.weight.requires_grad = variant["norm_scale"]
    return made


@torch.no_grad()
def whiten(layer, images):
    """Sets kernels to the directions in which patches vary most, scaled to variance 1, and to their negatives."""
    count, channels, side, _ = layer.weight.shape
    patches = images.unfold(2, side, 1).unfold(3, side, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, channels * side**2).double()
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    kernels = (vectors / torch.sqrt(values.clamp(min=0) + 5e-4)).T.flip(0)[: count // 2]
    kernels = torch.cat([kernels, -kernels]).reshape(-1, channels, side, side)
    layer.weight[: len(kernels)] = kernels.to(layer.weight)


def multiply_adds(variant, side):
    """Of a forward pass, and a third of those of a training step, which leaves out gradients that nothing needs."""
    kernel, width = (4 if variant["stem"] == "frozen-2" else 9), variant["stem_width"]
    stem, rest, here, last = side**2 * kernel * 3 * width, 0, side, width
    for outputs, second in zip(variant["widths"], variant["second"]):
        rest += here**2 * 9 * last * outputs
        here, last = here // 2, outputs
        rest += second * here**2 * 9 * outputs**2
    tokens = here**2
    rest += variant["depth"] * (tokens * last**2 * (4 + 2 * variant["mlp_ratio"]) + 2 * tokens**2 * last)
    return stem + rest, rest + stem * (1 if variant["stem"].startswith("frozen") else 2) / 3
