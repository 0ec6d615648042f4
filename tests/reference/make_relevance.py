"""Writes tests/fixtures/relevance: the maps of `vitrine explain` for timm's models of the other fixtures, written out in PyTorch.

The keys of io.safetensors are CASE.METHOD, for the images and weights of the fixture CASE and the classes in `classes`.

Run:  pip install torch timm numpy safetensors
      python make_relevance.py ../fixtures
"""
import json
import sys
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file, save_file

CLASSES = [3, 7]


def load(folder):
    config = json.loads((folder / "config.json").read_text())
    module = timm.models.swin_transformer if config["model"].startswith("Swin") else timm.models.vision_transformer
    model = getattr(module, config.pop("model"))(**config).eval()
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    return model, load_file(folder / "io.safetensors")["input"]


def score(logits):
    """The sum of the logits of each image's class."""
    return sum(logits[image, label] for image, label in enumerate(CLASSES))


def attention(model, images):
    """The weights of every block, with their gradients."""
    kept = []

    def keep(module, inputs, output):
        output.retain_grad()
        kept.append(output)

    hooks = []
    for block in model.blocks:
        block.attn.fused_attn = False
        hooks.append(block.attn.attn_drop.register_forward_hook(keep))
    score(model(images)).backward()
    for hook in hooks:
        hook.remove()
    return [(weights.detach(), weights.grad) for weights in kept]


def read(model, flow):
    """The row of the class token, or the mean of the rows of the patches, without the tokens before the patches."""
    prefix = model.num_prefix_tokens
    row = flow[:, 0] if model.global_pool == "token" else flow[:, prefix:].mean(1)
    return row[:, prefix:].reshape(len(flow), *model.patch_embed.grid_size)


def rollout(model, maps):
    """Abnar and Zuidema 2020, section 3."""
    flow = None
    for weights, _ in maps:
        step = weights.mean(1) + torch.eye(weights.shape[-1])
        step = step / step.sum(-1, keepdim=True)
        flow = step if flow is None else step @ flow
    return read(model, flow)


def gradient_attention(model, maps):
    """Chefer et al. 2021, equations 5 and 6, without the relevance that a token starts with."""
    identity = torch.eye(maps[0][0].shape[-1]).expand(len(CLASSES), -1, -1)
    relevance = identity
    for weights, gradient in maps:
        relevance = relevance + (weights * gradient).clamp(min=0).mean(1) @ relevance
    return read(model, relevance - identity)


def grad_cam(model, images, block, prefix):
    """Selvaraju et al. 2017, equations 1 and 2, at the input of a block."""
    kept = {}

    def keep(module, inputs):
        inputs[0].retain_grad()
        kept["tokens"] = inputs[0]

    hook = block.register_forward_pre_hook(keep)
    score(model(images)).backward()
    hook.remove()
    tokens, gradient = kept["tokens"].detach(), kept["tokens"].grad
    if tokens.ndim == 3:  # [batch, tokens, dim], of a plain model
        rows, columns = model.patch_embed.grid_size
        tokens, gradient = (x[:, prefix:].reshape(len(x), rows, columns, -1) for x in (tokens, gradient))
    importance = gradient.mean((1, 2), keepdim=True)
    return (tokens * importance).sum(-1).clamp(min=0)


def attention_by_head(model, maps):
    """How each head of the last block reads the patches: [batch, heads, rows, columns]."""
    weights, _ = maps[-1]
    return torch.stack([read(model, head) for head in weights.unbind(1)], 1)


def pooling(model, images):
    """How each head of the pooling's query reads the patches (timm's AttentionPoolLatent): [batch, heads, rows, columns]."""
    pool = model.attn_pool
    with torch.no_grad():
        patches = model.forward_features(images)[:, model.num_prefix_tokens:]
        keys = pool.kv(patches)[..., : patches.shape[-1]]
        by_head = lambda x: x.unflatten(-1, (pool.num_heads, pool.head_dim)).transpose(1, 2)
        query, keys = pool.q_norm(by_head(pool.q(pool.latent))), pool.k_norm(by_head(keys))
        weights = (query * pool.scale @ keys.mT).softmax(-1)
        return weights.squeeze(2).reshape(len(images), pool.num_heads, *model.patch_embed.grid_size)


def patch_logits(model, images):
    """The head applied to each normalized patch, as if it were the only one: [batch, classes, rows, columns]."""
    with torch.no_grad():
        features = model.forward_features(images)
        if features.ndim == 4:  # [batch, rows, columns, dim], of a Swin model; the mean of one patch is that patch
            return model.head.fc(features).permute(0, 3, 1, 2)
        patches = features[:, model.num_prefix_tokens:]
        if model.attn_pool is not None:
            patches = torch.stack([model.attn_pool(patch[:, None]) for patch in patches.unbind(1)], 1)
        logits = model.head(model.fc_norm(patches))
        return logits.mT.reshape(len(images), -1, *model.patch_embed.grid_size)


def main(fixtures):
    maps = {"classes": torch.tensor(CLASSES)}
    for case in ["timm_vit", "timm_vit_avgpool_reg_layerscale"]:
        model, images = load(fixtures / case)
        of_blocks = attention(model, images)
        maps[f"{case}.attention"] = attention_by_head(model, of_blocks)
        maps[f"{case}.attention_mean"] = read(model, of_blocks[-1][0].mean(1))
        maps[f"{case}.patch_logits"] = patch_logits(model, images)
        maps[f"{case}.rollout"] = rollout(model, of_blocks)
        maps[f"{case}.gradient_attention"] = gradient_attention(model, of_blocks)
        maps[f"{case}.grad_cam"] = grad_cam(model, images, model.blocks[-1], model.num_prefix_tokens)
    model, images = load(fixtures / "timm_vit_map_qknorm")
    maps["timm_vit_map_qknorm.grad_cam"] = grad_cam(model, images, model.blocks[-1], model.num_prefix_tokens)
    maps["timm_vit_map_qknorm.pooling"] = pooling(model, images)
    maps["timm_vit_map_qknorm.patch_logits"] = patch_logits(model, images)
    model, images = load(fixtures / "timm_swin")
    maps["timm_swin.patch_logits"] = patch_logits(model, images)
    maps["timm_swin.grad_cam"] = grad_cam(model, images, model.layers[-1].blocks[-1], 0)
    folder = fixtures / "relevance"
    folder.mkdir(exist_ok=True)
    save_file({name: x.contiguous() for name, x in maps.items()}, folder / "io.safetensors")
    for name, x in maps.items():
        print(name, tuple(x.shape), x.min().item(), x.max().item())


main(Path(sys.argv[1]))
