"""What the peers share: the options of `vitrine bench`, and its way of timing."""
import argparse
import json
import resource
import time

MODELS = ["vit_192_6_3", "swin_32", "vit_tiny_patch16_224"]
WARM_UP = 2  # steps before the clock counts


def parser(description):
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="vit_tiny_patch16_224")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed, after warm-up; the median counts")
    parser.add_argument("--threads", type=int, default=2)
    return parser


def median_seconds(steps, step):
    for _ in range(WARM_UP):
        step()
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[steps // 2]


def report(args, **figures):
    """Prints the JSON object of `vitrine bench`. Linux counts the peak of memory in kilobytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = {"model": args.model, "device": "cpu", "batch_size": args.batch_size}
    print(json.dumps({**what, **figures, "peak_rss_mb": peak}))
