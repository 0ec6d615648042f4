"""Writes tests/fixtures/muon: three steps of torch.optim.Muon, and of AdamW for the parameters that Muon does not take.

torch orthogonalizes in bfloat16, by five iterations of one polynomial. Here its own function runs in float64, like all of the reference, by
two iterations, each with a polynomial of its own.

Run:  pip install "torch>=2.9" numpy safetensors
      python make_muon.py ../fixtures
"""
import inspect
import os
import sys

import torch
from safetensors.torch import save_file
from torch.optim import _muon

RECIPE = {"lr": 0.2, "weight_decay": 0.1}
STEPS = 3
# The shapes in which this project stores parameters: linear weights are [input, output].
SHAPES = {
    "stages.0.qkv.weight": (6, 18),
    "stages.0.tall.weight": (12, 5),
    "stages.0.tall.bias": (5,),
    "stages.0.wide.weight": (5, 12),
    "stages.0.square.weight": (8, 8),
    "stages.0.kernel": (4, 2, 3, 3),
    "stages.0.stack": (2, 4, 3),
    "head.weight": (5, 3),
}

# For singular values of 0.03 to 1 of the norm.
POLYNOMIALS = (7.3625, -20.7434, 15.1606), (2.9175, -2.1824, 0.4755)

source = inspect.getsource(_muon._zeropower_via_newtonschulz)
parts = {"bfloat16": "float64", "a, b, c = ns_coefficients": "", "for _ in range(ns_steps):": "for a, b, c in POLYNOMIALS:"}
for old, new in parts.items():
    assert source.count(old) == 1
    source = source.replace(old, new)
_muon.POLYNOMIALS = POLYNOMIALS
exec(source, _muon.__dict__)


def matrices(name, array):
    """Splits an array into matrices in torch's layout, [output, input]."""
    if name.endswith("qkv.weight"):
        return [part.T for part in array.chunk(3, dim=1)]
    if array.ndim == 3:
        return list(array)
    return [array.flatten(1) if array.ndim == 4 else array.T]


def joined(name, parts):
    """The inverse of `matrices`."""
    if name.endswith("qkv.weight"):
        return torch.cat([part.T for part in parts], dim=1)
    if len(SHAPES[name]) == 3:
        return torch.stack(parts)
    return parts[0].reshape(SHAPES[name]) if len(SHAPES[name]) == 4 else parts[0].T


def parameters(arrays):
    """The parameters of torch's optimizers, by name."""
    is_hidden = {name: name.startswith("stages.") and array.ndim > 1 for name, array in arrays.items()}
    cut = {name: matrices(name, array) if is_hidden[name] else [array] for name, array in arrays.items()}
    return {name: [torch.nn.Parameter(part.double().clone()) for part in parts] for name, parts in cut.items()}, is_hidden


torch.manual_seed(3)
before = {name: torch.randn(shape) for name, shape in SHAPES.items()}
after, is_hidden = parameters(before)
optimizers = [torch.optim.Muon([part for name in SHAPES if is_hidden[name] for part in after[name]], adjust_lr_fn="match_rms_adamw", **RECIPE)]
optimizers.append(torch.optim.AdamW(after["head.weight"], **RECIPE))
optimizers.append(torch.optim.AdamW(after["stages.0.tall.bias"], lr=RECIPE["lr"], weight_decay=0.0))
file = {f"before.{name}": array for name, array in before.items()}
for step in range(STEPS):
    gradients = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    file |= {f"gradients.{step}.{name}": array for name, array in gradients.items()}
    for name, parts in parameters(gradients)[0].items():
        for parameter, gradient in zip(after[name], parts):
            parameter.grad = gradient.detach()
    for optimizer in optimizers:
        optimizer.step()
for name, parts in after.items():
    parts = [part.detach().float() for part in parts]
    file[f"after.{name}"] = joined(name, parts) if is_hidden[name] else parts[0]
folder = os.path.join(sys.argv[1], "muon")
os.makedirs(folder, exist_ok=True)
save_file({name: array.contiguous() for name, array in file.items()}, os.path.join(folder, "io.safetensors"))
for name in SHAPES:
    print(name, "moved by up to", (file[f"after.{name}"] - before[name]).abs().max().item())
