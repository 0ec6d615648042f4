"""Lists timm's names of Vision Transformers with the constructor arguments that each name stands for.

Writes the table src/import/config/timm_architectures.tsv: name, class, height and width that the name implies
(0 0 if the model takes images of any size), and the constructor's arguments that differ from its defaults, as JSON.
Classes and functions are written by their names, and norm_layer=partial(LayerNorm, eps=E) as norm_eps.

Run:  pip install torch timm==1.0.31
      python list_timm.py ../../src/import/config/timm_architectures.tsv
"""
import functools
import inspect
import json
import sys

import timm
from timm.models import _builder, beit, cait, deit, eva, swin_transformer, swin_transformer_v2, vision_transformer
from timm.models._registry import _model_to_module

MODULES = {"beit", "eva", "vision_transformer", "deit", "cait", "swin_transformer", "swin_transformer_v2", "vision_transformer_hybrid"}
CLASSES = [vision_transformer.VisionTransformer, deit.VisionTransformerDistilled, cait.Cait, eva.Eva, beit.Beit,
           swin_transformer.SwinTransformer, swin_transformer_v2.SwinTransformerV2]
DEFAULTS = {}


class Called(BaseException):
    """Raised in place of building a model, with the constructor's arguments."""


def record(cls):
    signature = inspect.signature(cls.__init__)
    DEFAULTS[cls.__name__] = {name: p.default for name, p in signature.parameters.items()}

    def init(self, *args, **kwargs):
        arguments = dict(signature.bind(self, *args, **kwargs).arguments)
        arguments.pop("self")
        arguments.update(arguments.pop("kwargs", {}))
        raise Called(type(self).__name__, arguments)

    return init


def name_of(value):
    if isinstance(value, functools.partial):
        return name_of(value.func)
    return value if isinstance(value, (int, float, str, list, tuple)) or value is None else value.__name__


def main():
    replaced = [(cls, record(cls)) for cls in CLASSES]
    for cls, init in replaced:
        cls.__init__ = init
    DEFAULTS["VisionTransformerDistilled"].update(DEFAULTS["VisionTransformer"], global_pool="token")
    # Arguments from the registry's pretrained_cfg do not belong to the name: a folder's own pretrained_cfg replaces
    # them.
    _builder._update_default_model_kwargs = lambda cfg, kwargs, names: _builder._filter_kwargs(kwargs, names=names)
    rows = []
    for name in timm.list_models():
        if _model_to_module[name] not in MODULES:
            continue
        try:
            timm.create_model(name)
        except Called as call:
            kind, arguments = call.args
        cfg = timm.get_pretrained_cfg(name)
        size = cfg.input_size[1:] if cfg and cfg.fixed_input_size else (0, 0)
        size = timm.layers.to_2tuple(arguments.pop("img_size", size))
        stated = {}
        for key, value in arguments.items():
            if value == DEFAULTS[kind].get(key) or key.endswith("drop_rate"):
                continue
            if key == "norm_layer" and name_of(value) == "LayerNorm":
                key, value = "norm_eps", value.keywords["eps"]
            stated[key] = name_of(value)
        rows.append(f"{name}\t{kind}\t{size[0]}\t{size[1]}\t{json.dumps(stated, separators=(',', ':'))}\n")
    with open(sys.argv[1], "w") as table:
        table.writelines(rows)
    print(len(rows), "names")


if __name__ == "__main__":
    main()
