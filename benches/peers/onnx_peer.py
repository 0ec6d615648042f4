"""Measures inference of a timm model with ONNX Runtime on the CPU, as `vitrine bench` measures vitrine.

torch.onnx exports each batch size once, with fixed shapes, which allow the most optimizations. The files are kept in
the system's folder for temporary files. The peak of memory of the run that makes them includes the export.
"""
import os
import tempfile

import numpy as np
import onnxruntime

from common import parser, report, times


def exported(name, batch):
    """The path of the model for a batch size, which is exported if there is none."""
    folder = os.path.join(tempfile.gettempdir(), "vitrine-peers")
    path = os.path.join(folder, f"{name}-{batch}.onnx")
    if not os.path.exists(path):
        import torch
        from torch_peer import build, images
        os.makedirs(folder, exist_ok=True)
        model = build(name).eval()
        program = torch.onnx.export(model, (images(model, batch),), dynamo=True, verbose=False)
        program.save(path + ".part", external_data=False)
        os.replace(path + ".part", path)
    return path


def infer(args, batch):
    """The times of forward passes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(exported(args.model, batch), options, providers=["CPUExecutionProvider"])
    feed = session.get_inputs()[0]
    x = np.random.default_rng(0).standard_normal(feed.shape, dtype=np.float32)
    return times(args.steps, lambda: session.run(None, {feed.name: x}))


def main():
    args = parser(__doc__).parse_args()
    report(args, infer=infer(args, args.batch_size), infer_batch1=infer(args, 1))


if __name__ == "__main__":
    main()
