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
    def __init__(self, gate=None, norm_first=True, activation=F.gelu):
        super().__init__()
        self.norm_first, self.activation = norm_first, activation
        self.norm1, self.norm2 = nn.LayerNorm(DIM, 1e-6), nn.LayerNorm(DIM, 1e-6)
        self.attn = Attention()
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(DIM, 2 * DIM), "fc2": nn.Linear(2 * DIM, DIM)})
        if gate:
            self.channel_attention = gate()

    def forward(self, x, position=None, mask=None):
        mlp = lambda x: self.mlp["fc2"](self.activation(self.mlp["fc1"](x)))
        if not self.norm_first:
            x = self.norm1(x + self.attn(x))
            return self.norm2(x + mlp(x))
        mixed = self.norm1(x)
        mixed = self.attn(mixed, position, mask(mixed) if callable(mask) else mask)
        if hasattr(self, "channel_attention"):
            mixed = self.channel_attention(mixed)
        x = x + mixed
        return x + mlp(self.norm2(x))


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


class Cross(nn.Module):
    """Attention of queries to patches, with keys and values in one layer as in timm's attention pooling."""

    def __init__(self, score="scaled_dot"):
        super().__init__()
        self.q, self.kv, self.proj = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)
        width = DIM // HEADS
        if score == "additive":
            matrix = lambda *shape: nn.Parameter(torch.empty(HEADS, *shape))
            self.additive = nn.ParameterDict(
                {"query": matrix(width, width), "key": matrix(width, width), "vector": matrix(width, 1)}
            )

    def forward(self, queries, patches):
        split = lambda x: x.reshape(*x.shape[:2], HEADS, -1).transpose(1, 2)
        keys, values = self.kv(patches).chunk(2, 2)
        q, k, v = split(self.q(queries)), split(keys), split(values)
        if hasattr(self, "additive"):
            one, other = q @ self.additive["query"], k @ self.additive["key"]
            hidden = torch.tanh(one[:, :, :, None] + other[:, :, None])
            scores = (hidden @ self.additive["vector"][:, None])[..., 0]
        else:
            scores = q @ k.transpose(2, 3) * (DIM // HEADS) ** -0.5
        return self.proj((scores.softmax(3) @ v).transpose(1, 2).flatten(2))


class Queries(Cross):
    def __init__(self, count, score="scaled_dot"):
        super().__init__(score)
        self.queries = nn.Parameter(torch.empty(1, count, DIM))
        self.width = count * DIM

    def forward(self, patches):
        return super().forward(self.queries.expand(len(patches), -1, -1), patches).flatten(1)


class Recurrent(Cross):
    width = DIM

    def __init__(self, steps, score="additive"):
        super().__init__(score)
        self.initial, self.gru, self.steps = nn.Linear(DIM, DIM), nn.GRUCell(DIM, DIM), steps

    def forward(self, patches):
        state = torch.tanh(self.initial(patches.mean(1)))
        for _ in range(self.steps):
            state = self.gru(super().forward(state[:, None], patches)[:, 0], state)
        return state


class ClassQueries(nn.Module):
    width = DIM

    def __init__(self, depth, norm_first, activation):
        super().__init__()
        layer = lambda: nn.TransformerDecoderLayer(
            DIM, HEADS, 2 * DIM, 0.0, activation, 1e-6, batch_first=True, norm_first=norm_first
        )
        self.queries = nn.Parameter(torch.empty(1, CLASSES, DIM))
        self.layers = nn.ModuleList([layer() for _ in range(depth)])
        self.norm = nn.LayerNorm(DIM, 1e-6) if norm_first else nn.Identity()

    def forward(self, patches):
        queries = self.queries.expand(len(patches), -1, -1)
        for layer in self.layers:
            queries = layer(queries, patches)
        return self.norm(queries)


def names(key, tensor):
    """The tensors that vitrine stores for one of a pooling."""
    for theirs, ours in [
        (".weight_ih", ".input.weight"),
        (".bias_ih", ".input.bias"),
        (".weight_hh", ".state.weight"),
        (".bias_hh", ".state.bias"),
        ("decoder.queries", "head.queries"),
        (".self_attn.in_proj_", ".self_attention.qkv."),
        (".self_attn.out_proj.", ".self_attention.proj."),
        (".multihead_attn.out_proj.", ".cross_attention.proj."),
        (".linear1.", ".mlp.fc1."),
        (".linear2.", ".mlp.fc2."),
        (".norm1.", ".self_norm."),
        (".norm2.", ".cross_norm."),
        (".norm3.", ".feed_forward_norm."),
    ]:
        if key.startswith(("attn_pool", "decoder")):
            key = key.replace(theirs, ours)
    before, joined, kind = key.partition(".multihead_attn.in_proj_")
    if joined:
        return [(f"{before}.cross_attention.{part}.{kind}", x) for part, x in zip("qkv", tensor.chunk(3))]
    return [(key, tensor)]


class Model(nn.Module):
    def __init__(self, tokens=None, gate=None, peg=None, network=None, place="tokens", mask=None, pool=None, norm_first=True, activation=F.gelu):
        super().__init__()
        self.patch_embed = tokens or Patches()
        self.blocks = nn.ModuleList([Block(gate, norm_first, activation) for _ in range(2)])
        self.head = nn.Linear(pool.width if pool else DIM, CLASSES)
        if pool:  # the tokens are normalized before the pooling, and not the mean after it
            self.norm = nn.LayerNorm(DIM, 1e-6) if norm_first else nn.Identity()
            self.add_module("decoder" if isinstance(pool, ClassQueries) else "attn_pool", pool)
        else:
            self.fc_norm = nn.LayerNorm(DIM, 1e-6)
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
        if hasattr(self, "fc_norm"):
            return self.head(self.fc_norm(x.mean(1)))
        x = self.norm(x)
        if hasattr(self, "attn_pool"):
            return self.head(self.attn_pool(x))
        return (self.decoder(x) * self.head.weight).sum(2) + self.head.bias


def gate(kind, place, reduction=None):
    fields = {"kind": kind, "place": place} | ({"reduction": reduction} if reduction else {})
    return {"channel_attention": fields}


def masked(near):
    """The mask of all pairs of patches for which `near` is true of two places."""
    places = [(row, column) for row in range(ROWS) for column in range(COLUMNS)]
    return torch.tensor([[near(query, key) for key in places] for query in places])


def cut(radius):
    return masked(lambda query, key: max(abs(a - b) for a, b in zip(query, key)) <= radius)


def moved(radius):
    """NATTEN's neighborhoods: windows of 2 * radius + 1 whose start is clamped to the grid."""

    def near(query, key):
        starts = [min(max(a - radius, 0), side - 2 * radius - 1) for a, side in zip(query, (ROWS, COLUMNS))]
        return all(start <= b < start + 2 * radius + 1 for start, b in zip(starts, key))

    return masked(near)


def nearest(neighbors):
    """Each patch and its nearest ones, by the distance of their vectors."""

    def mask(x):
        order = torch.cdist(x, x).argsort(2)[:, :, : neighbors + 1]
        return torch.zeros(len(x), ROWS * COLUMNS, ROWS * COLUMNS).scatter_(2, order, 1).bool()[:, None]

    return mask


def edges(pairs):
    mask = torch.eye(ROWS * COLUMNS).bool()
    for query, key in pairs:
        mask[query, key] = True
    return mask


EDGES = [[patch, (7 * patch + 3) % (ROWS * COLUMNS)] for patch in range(0, ROWS * COLUMNS, 2)]

CASES = {
    "neighborhood": ({"mixers": [{"neighborhood": 1}]}, lambda: Model(mask=cut(1))),
    "full_neighborhood": ({"mixers": [{"full_neighborhood": 1}]}, lambda: Model(mask=moved(1))),
    "graph": ({"mixers": [{"graph": {"neighbors": 5}}]}, lambda: Model(mask=nearest(5))),
    "adjacency": ({"mixers": ["adjacency"], "adjacency": EDGES}, lambda: Model(mask=edges(EDGES))),
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
    "queries": ({"pool": {"queries": 3}}, lambda: Model(pool=Queries(3))),
    "queries_additive": (
        {"pool": {"queries": 2}, "pool_score": "additive"},
        lambda: Model(pool=Queries(2, "additive")),
    ),
    "recurrent": ({"pool": {"recurrent": {"steps": 3}}}, lambda: Model(pool=Recurrent(3))),
    "class_queries": (
        {"pool": {"class_queries": {"depth": 2}}},
        lambda: Model(pool=ClassQueries(2, True, "gelu")),
    ),
    "class_queries_post_norm": (
        {"pool": {"class_queries": {"depth": 1}}, "block": "post_norm", "mlp": "relu"},
        lambda: Model(pool=ClassQueries(1, False, "relu"), norm_first=False, activation=F.relu),
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
        arrays |= {f"weight.{key}": tensor for key, tensor in names(key, parameter.detach())}
        arrays |= {f"grad.{key}": tensor for key, tensor in names(key, parameter.grad)}
    arrays = {key: array.float().contiguous() for key, array in arrays.items()}
    save_file(arrays, os.path.join(folder, f"{name}.safetensors"), {"config": json.dumps(BASE | changes)})


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    torch.set_default_dtype(torch.float64)
    for name, (changes, make) in CASES.items():
        torch.manual_seed(0)
        write(sys.argv[1], name, changes, make())
