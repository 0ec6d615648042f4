"""Measures a timm model, or vitrine's default one in PyTorch (ablation_model.py), on the CPU as `vitrine bench` measures
vitrine, and prints the same JSON object.

Everything is f32 and computed with torch's fast kernels: scaled_dot_product_attention where timm uses it, AdamW with
fused=True (a quarter of the time of the default, which loops over parameters, and of foreach=True).
"""
import timm
import torch
from timm.models._hub import save_for_hf
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from timm.optim import param_groups_weight_decay
from torch.nn.functional import cross_entropy

import ablation_model
from common import parser, report, times

# The channels of the stages.
HYBRIDS = {"hybrid_micro_patch8_32": [48, 96, 192], "hybrid_small_patch8_32": [64, 128, 256]}


def build(name):
    if name in HYBRIDS:
        variant = {"stem": "random", "widths": HYBRIDS[name], "stem_width": HYBRIDS[name][0] // 2}
        model = ablation_model.Model({**ablation_model.DEFAULTS, **variant}, 10, torch.empty(0, 3, 32, 32))
        model.num_classes = 10
        return model.to(memory_format=torch.channels_last)
    if name == "vit_192_6_3":
        return VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=10)
    if name == "swin_32":  # without timm's default of stochastic depth, which vitrine's model does not have
        return SwinTransformer(img_size=32, patch_size=2, embed_dim=48, depths=(2, 4), num_heads=(3, 6), window_size=4,
                               num_classes=10, drop_path_rate=0.0)
    size = {"img_size": 224} if "dinov2" in name else {}  # its default is 518
    return timm.create_model(name, num_classes=1000, **size)


def images(model, batch):
    is_hybrid = isinstance(model, ablation_model.Model)
    made = torch.randn(batch, 3, *((32, 32) if is_hybrid else model.patch_embed.img_size))
    return made.contiguous(memory_format=torch.channels_last) if is_hybrid else made


def train(model, run, args):
    """The times of training steps: forward, loss, backward, clipping, AdamW."""
    model.train()
    exempt = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
    groups = param_groups_weight_decay(model, 0.05, exempt)
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
    x = images(model, args.batch_size)
    targets = torch.full((args.batch_size, model.num_classes), 1 / model.num_classes)

    def step():
        optimizer.zero_grad()
        cross_entropy(run(x), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return times(args.steps, step)


def infer(model, run, args, batch):
    """The times of forward passes."""
    model.eval()
    x = images(model, batch)
    with torch.inference_mode():
        return times(args.steps, lambda: run(x))


def main():
    options = parser(__doc__)
    options.add_argument("--compile", action="store_true", help="torch.compile, with a graph for each batch size")
    options.add_argument("--training-only", action="store_true", help="leave out inference, and its compilation")
    options.add_argument("--save", metavar="FOLDER", help="save the model with random weights, and measure nothing")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = build(args.model)
    if args.save:
        save_for_hf(model, args.save, safe_serialization=True)
        return
    run = torch.compile(model, dynamic=False) if args.compile else model
    step_ms = {"train": train(model, run, args)}
    if not args.training_only:
        # vitrine also builds a new model for inference, after the memory of training is freed.
        model.zero_grad()
        step_ms["infer"] = infer(model, run, args, args.batch_size)
        step_ms["infer_batch1"] = infer(model, run, args, 1)
    report(args, **step_ms)


if __name__ == "__main__":
    main()
