"""Compares the graphs that vitrine exports with those that torch exports of the same models: ONNX Runtime's time and answers.

timm's models get random weights, which `vitrine export` reads; `hybrid` is a run of vitrine's default model for 32
pixels, whose weights go into its twin in PyTorch. The two graphs run in turn; times are medians of rounds.

Run:  python onnx_graph.py RUN --vitrine target/release/vitrine [--threads 2] [--rounds 7]     (RUN: a run folder of hybrid_pico_patch4_32)
"""
import argparse
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy
import onnxruntime
import timm
import torch
from safetensors.torch import load_file, save_file

from twin_models import Hybrid

TIMM = ["vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch32_224", "deit_tiny_distilled_patch16_224", "cait_xxs24_224",
        "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256"]


def session(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def torch_graph(model, images, path):
    batch = torch.export.Dim("batch")
    torch.onnx.export(model, (images,), str(path), opset_version=20, dynamo=True, dynamic_shapes=({0: batch},), input_names=["images"],
                      verbose=False)


def run(session, images):
    begin = time.perf_counter()
    (answers,) = session.run(None, {session.get_inputs()[0].name: images})
    return time.perf_counter() - begin, answers


def compare(name, model, source, args, folder):
    """Prints the largest difference of the answers, and torch's time over ours for one image and sixteen."""
    ours, theirs = folder / "ours.onnx", folder / "theirs.onnx"
    subprocess.run([args.vitrine, "export", source, "--layout", "onnx", "--output", ours], check=True, capture_output=True)
    side = session(ours, args.threads).get_inputs()[0].shape[-1]
    torch_graph(model, torch.randn(2, 3, side, side), theirs)
    sessions = [session(path, args.threads) for path in (ours, theirs)]
    line = []
    for batch in (1, 16):
        images = numpy.random.default_rng(1).standard_normal((batch, 3, side, side), dtype=numpy.float32)
        answers = [run(each, images)[1] for each in sessions]
        difference = numpy.abs(answers[0] - answers[1]).max() / max(1.0, numpy.abs(answers[1]).max())
        repeats = max(1, round(0.3 / run(sessions[0], images)[0]))
        ratios = []
        for _ in range(args.rounds):
            ours_s, theirs_s = (min(run(each, images)[0] for _ in range(repeats)) for each in sessions)
            ratios.append(theirs_s / ours_s)
        line.append(f"batch {batch}: difference {difference:.1e}, torch's graph / ours {statistics.median(ratios):.2f}")
    print(f"{name:34}{'; '.join(line)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--vitrine", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        weights = load_file(args.run / "model.safetensors")
        compare("hybrid", Hybrid.of(weights).eval(), args.run, args, folder)
        for name in TIMM:
            model = timm.create_model(name).eval()
            with torch.no_grad():  # so that no branch starts at zero
                for parameter in model.parameters():
                    parameter.add_(0.05 * torch.randn_like(parameter))
            path = folder / f"{name}.safetensors"
            save_file({key: value.contiguous() for key, value in model.state_dict().items()}, path)
            compare(name, model, path, args, folder)


if __name__ == "__main__":
    main()
