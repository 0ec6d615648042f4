"""Compares vitrine's models with weights of eight bits with ONNX Runtime's int8 of the same models: time for 16 images and for one.

ONNX Runtime gets the graph that vitrine exports, quantized by its own tools: dynamic (weights per channel, activations when they are read)
and static (QDQ, per channel, calibrated on random images). All take turns; times are medians of rounds. The model is one of vitrine's presets,
trained for a moment.

Run:  python int8.py vit_tiny_patch16_224 hybrid_nano_patch8_64 --vitrine target/release/vitrine [--threads 2] [--rounds 7]
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import numpy
import onnx
import onnxruntime
from onnxruntime.quantization import (CalibrationDataReader, QuantFormat, QuantType, quant_pre_process, quantize_dynamic,
                                      quantize_static)

from onnx_graph import run, session


class Images(CalibrationDataReader):
    def __init__(self, name, side, count=8):
        generator = numpy.random.default_rng(1)
        self.batches = iter([{name: generator.standard_normal((4, 3, side, side), dtype=numpy.float32)} for _ in range(count)])

    def get_next(self):
        return next(self.batches, None)


def graphs(model, args, folder):
    """The paths of vitrine's graph, and of both of its quantized forms."""
    trained = folder / "run"
    subprocess.run([args.vitrine, "train", "shapes", "--model", model, "--time", "2s", "--output", trained], check=True, capture_output=True)
    plain = folder / "plain.onnx"
    subprocess.run([args.vitrine, "export", trained, "--layout", "onnx", "--output", plain], check=True, capture_output=True)
    prepared, dynamic, static = (folder / f"{name}.onnx" for name in ("prepared", "dynamic", "static"))
    quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
    quantize_dynamic(str(prepared), str(dynamic), per_channel=True, weight_type=QuantType.QInt8)
    graph = onnx.load(prepared, load_external_data=False).graph.input[0]
    side = graph.type.tensor_type.shape.dim[-1].dim_value
    quantize_static(str(prepared), str(static), Images(graph.name, side), quant_format=QuantFormat.QDQ, per_channel=True,
                    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
    return {"f32": plain, "dynamic": dynamic, "static": static}, side


def ours(model, batch, args):
    """Milliseconds of a batch and of one image with weights of 32 and of 8 bits."""
    command = [args.vitrine, "bench", "--model", model, "--batch-size", str(batch), "--steps", "5", "--int8", "--json",
               "--threads", str(args.threads)]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    int8 = figures["int8"]
    return {("f32", batch): 1e3 * batch / figures["infer_images_per_second"], ("f32", 1): figures["latency_ms_batch1"],
            ("int8", batch): 1e3 * batch / int8["infer_images_per_second"], ("int8", 1): int8["latency_ms_batch1"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--vitrine", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    print(f"onnxruntime {onnxruntime.__version__}, VITRINE_AMX {os.environ.get('VITRINE_AMX', 'unset')}; milliseconds, medians of rounds")
    for model in args.models:
        with tempfile.TemporaryDirectory() as folder:
            paths, side = graphs(model, args, pathlib.Path(folder))
            sessions = {name: session(path, args.threads) for name, path in paths.items()}
            times = {}
            for _ in range(args.rounds):
                for key, milliseconds in ours(model, 16, args).items():
                    times.setdefault(("vitrine", *key), []).append(milliseconds)
                for batch in (16, 1):
                    images = numpy.random.default_rng(1).standard_normal((batch, 3, side, side), dtype=numpy.float32)
                    for name, each in sessions.items():
                        repeats = 5 if batch > 1 else 25
                        steps = [run(each, images)[0] for _ in range(2 + repeats)][2:]
                        times.setdefault(("onnxruntime", name, batch), []).append(1e3 * statistics.median(steps))
            for batch in (16, 1):
                line = ", ".join(f"{program} {form} {statistics.median(all):.2f}" for (program, form, size), all in times.items()
                                 if size == batch)
                best = [min(all) for all in zip(times["onnxruntime", "dynamic", batch], times["onnxruntime", "static", batch])]
                ratio = statistics.median(theirs / mine for theirs, mine in zip(best, times["vitrine", "int8", batch]))
                print(f"{model}, batch {batch}: {line}; onnxruntime's faster int8 / ours {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
