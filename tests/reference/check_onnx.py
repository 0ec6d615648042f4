"""Compares what ONNX Runtime computes from the files of a folder with the answers next to them.

For every NAME.onnx, NAME.safetensors holds `input` and `answers`. The files are checked with onnx's checker, and run with
batches of 1, 3, and all images. Answers must be equal to 1e-4, relative to the largest; 16-bit weights to 1 %; with
preprocessing in the graph to 2 %, as two resizers differ by a gray level here and there.

Run:  python check_onnx.py FOLDER      (tests/onnx.rs does so)
"""
import json
import pathlib
import sys

import numpy
import onnx
import onnxruntime
from safetensors.numpy import load_file


def tolerance(name):
    if name.startswith("photo"):
        return 2e-2
    return 1e-2 if name.startswith(("f16", "bf16")) else 1e-4


def difference(session, inputs, answers):
    (ours,) = session.run(None, {session.get_inputs()[0].name: inputs})
    if ours.shape != answers.shape:
        return float("inf")
    return float(numpy.abs(ours - answers).max() / max(1.0, numpy.abs(answers).max()))


def check(path):
    arrays = load_file(path.with_suffix(".safetensors"))
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    assert isinstance(json.loads(metadata["classes"]), list) and json.loads(metadata["preprocessing"]), metadata
    inputs, answers = arrays["input"], arrays["answers"]
    if session.get_inputs()[0].type == "tensor(uint8)":
        inputs = inputs.astype(numpy.uint8)
    return max(difference(session, inputs[:count], answers[:count]) for count in (1, 3, len(inputs)))


def main():
    paths = sorted(pathlib.Path(sys.argv[1]).glob("*.onnx"))
    failed = 0
    worst = {}
    for path in paths:
        try:
            found = check(path)
        except Exception as error:  # the file is named, and the others are checked
            print(f"{path.stem}: {str(error)[:300]}")
            failed += 1
            continue
        limit = tolerance(path.stem)
        worst[limit] = max(worst.get(limit, 0.0), found)
        if not found <= limit:
            print(f"{path.stem}: differs by {found:.1e}")
            failed += 1
    largest = ", ".join(f"{found:.1e} of {limit}" for limit, found in sorted(worst.items()))
    print(f"{len(paths)} files, {failed} differ; largest differences {largest}")
    sys.exit(1 if failed or not paths else 0)


if __name__ == "__main__":
    main()
