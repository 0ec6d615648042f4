"""Code shared by the peers: the options of `vitrine bench`, and its way of timing."""
import argparse
import json
import resource
import time

MODELS = ["hybrid_micro_patch8_32", "hybrid_small_patch8_32", "vit_192_6_3", "swin_32", "vit_tiny_patch16_224",
          "vit_small_patch16_224", "vit_base_patch16_224", "vit_small_patch14_dinov2"]
WARM_UP = 2  # steps that are not timed


def parser(description):
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="vit_tiny_patch16_224")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed, after warm-up; the median counts")
    parser.add_argument("--threads", type=int, default=2)
    return parser


def times(steps, step):
    """Milliseconds of each step."""
    for _ in range(WARM_UP):
        step()
    milliseconds = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        milliseconds.append(1e3 * (time.perf_counter() - start))
    return milliseconds


def report(args, **step_ms):
    """Prints the fields of `vitrine bench --json` that `compare.py` reads. Linux reports the peak of memory in
    kilobytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = {"model": args.model, "device": "cpu", "batch_size": args.batch_size}
    print(json.dumps({**what, "step_ms": step_ms, "peak_rss_mb": peak}))
