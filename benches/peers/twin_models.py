"""Some of vitrine's presets in PyTorch, with its initialization and with the names of its model files.

Weights of `Linear` have a normal distribution of deviation 0.02, and biases are zero. The patch embedding has PyTorch's
initialization of convolutions, the kernels of the convolutional tokenizer that of He et al. 2015.
"""
import torch
from timm.layers import DropPath
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional


def waves(places, dim):
    """Sinusoidal encodings of places: [places, dim]."""
    angles = places[:, None] / 10_000 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)


def vit_pico(classes):
    """vit_pico_patch4_32: timm's ViT with mean pooling and 2-D sinusoidal positions."""
    model = VisionTransformer(img_size=32, patch_size=4, embed_dim=96, depth=4, num_heads=3, num_classes=classes,
                              class_token=False, global_pool="avg")
    place = torch.arange(64, dtype=torch.float64)
    table = torch.cat([waves((place / 8).floor(), 48), waves(place % 8, 48)], 1)
    del model.pos_embed
    model.register_buffer("pos_embed", table.float()[None], persistent=False)
    return model


class ConvolutionEmbed(nn.Module):
    """Convolutions, each with ReLU and max pooling, to 8 x 8 tokens (Hassani et al. 2021, section 3.3)."""

    def __init__(self, widths):
        super().__init__()
        pairs = zip(widths, widths[1:])
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairs)
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight)

    def forward(self, images):
        for layer in self.layers:
            images = functional.max_pool2d(functional.relu(layer(images)), 3, 2, 1)
        return images.flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.heads, self.dropout = heads, dropout

    def forward(self, x):
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.proj(mixed.transpose(1, 2).reshape(batch, tokens, dim))


class CompactBlock(nn.Module):
    """The block of Hassani et al. 2021 in their code: the MLP's residual is its normalized input."""

    def __init__(self, dim, heads, hidden, dropout, drop_path):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, dropout)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(dim, hidden), "fc2": nn.Linear(hidden, dim)})
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        x = self.norm2(x + self.drop_path(self.attn(self.norm1(x))))
        return x + self.drop_path(self.mlp["fc2"](functional.gelu(self.mlp["fc1"](x))))


class CompactTransformer(nn.Module):
    """cct_2_3x2: CCT-2/3x2."""

    def __init__(self, classes, dim=128, heads=2):
        super().__init__()
        self.patch_embed = ConvolutionEmbed([3, 64, dim])
        self.pos_embed = nn.Parameter(torch.empty(1, 64, dim))
        self.blocks = nn.Sequential(*(CompactBlock(dim, heads, dim, 0.1, drop) for drop in (0.0, 0.1)))
        self.norm, self.attention_pool, self.head = nn.LayerNorm(dim), nn.Linear(dim, 1), nn.Linear(dim, classes)
        nn.init.normal_(self.pos_embed, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images):
        tokens = self.norm(self.blocks(self.patch_embed(images) + self.pos_embed))
        return self.head((tokens * self.attention_pool(tokens).softmax(1)).sum(1))


class ResidualStage(nn.Module):
    """A convolution, max pooling, norm and GELU, and a residual branch (`ResidualStage` of models/src/embed/residual.rs)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(count, outputs, 3, padding=1, bias=False) for count in (inputs, outputs))
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs, eps=1e-6), nn.BatchNorm2d(outputs, eps=1e-6)

    def forward(self, x):
        x = functional.gelu(self.norm1(functional.max_pool2d(self.conv1(x), 2)))
        return x + functional.gelu(self.norm2(self.conv2(x)))


class ResidualEmbed(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0], eps=1e-6)
        self.stages = nn.Sequential(*(ResidualStage(a, b) for a, b in zip(widths, widths[1:])))

    def forward(self, images):
        return self.stages(functional.gelu(self.stem_norm(self.stem(images)))).flatten(2).transpose(1, 2)


class RotaryAttention(nn.Module):
    """Attention with rotary positions over rows and columns: each half of a head holds the pairs of one axis."""

    def __init__(self, dim, heads, grid):
        super().__init__()
        self.qkv, self.proj, self.heads = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), heads
        pairs = dim // heads // 4
        places = torch.stack([torch.arange(grid).repeat_interleave(grid), torch.arange(grid).repeat(grid)], 1)
        angles = places[:, :, None] * 100.0 ** (-torch.arange(pairs) / pairs)  # [tokens, axes, pairs]
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, 2).flatten(1), persistent=False)
        self.register_buffer("sin", torch.cat([-angles.sin(), angles.sin()], 2).flatten(1), persistent=False)

    def rotate(self, x):
        a, b, c, d = x.chunk(4, -1)
        return x * self.cos + torch.cat([b, a, d, c], -1) * self.sin

    def forward(self, x):
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v)
        return self.proj(mixed.transpose(1, 2).reshape(batch, tokens, dim))


class HybridBlock(nn.Module):
    def __init__(self, dim, heads, hidden, grid):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = RotaryAttention(dim, heads, grid)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(dim, hidden), "fc2": nn.Linear(hidden, dim)})
        self.ls1, self.ls2 = (nn.ParameterDict({"gamma": torch.empty(dim)}) for _ in range(2))

    def forward(self, x):
        x = x + self.ls1["gamma"] * self.attn(self.norm1(x))
        return x + self.ls2["gamma"] * self.mlp["fc2"](functional.gelu(self.mlp["fc1"](self.norm2(x))))


class Hybrid(nn.Module):
    """hybrid_pico_patch4_32: residual convolutions, then a block with rotary positions."""

    def __init__(self, classes, dim=128, heads=4, widths=(32, 64), grid=8):
        super().__init__()
        self.patch_embed = ResidualEmbed([*widths, dim])
        self.blocks = nn.Sequential(HybridBlock(dim, heads, 2 * dim, grid))
        self.fc_norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, classes)

    @classmethod
    def of(cls, weights):
        """The model with the weights of a model file."""
        model = cls(weights["head.bias"].shape[0])
        counts = {name for name in weights if name.endswith("num_batches_tracked")}
        missing, unexpected = model.load_state_dict({name: weights[name] for name in weights if name not in counts}, strict=False)
        assert not unexpected and set(missing) <= counts, (missing, unexpected)
        return model

    def forward(self, images):
        return self.head(self.fc_norm(self.blocks(self.patch_embed(images)).mean(1)))


MODELS = {"vit_pico_patch4_32": vit_pico, "cct_2_3x2": CompactTransformer}
