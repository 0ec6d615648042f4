"""Two of vitrine's presets in PyTorch, with its initialization and with the names of its model files.

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


MODELS = {"vit_pico_patch4_32": vit_pico, "cct_2_3x2": CompactTransformer}
