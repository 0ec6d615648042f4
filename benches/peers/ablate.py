"""Variants of vitrine's default model and recipe in PyTorch on a GPU, all for the same arithmetic: what the defaults are chosen by.

A run's length is that number of
multiply-adds (`--gigas`, for whole training images; 36,000 are ten minutes of two cores at 60 to 70 G a second), so a variant
with a larger network sees fewer images. A tenth of the training images is held out; the table shows accuracy on them and on
the test split together, of single images, of images with their mirror images, and of six views as airbench94 has them.
Lines are appended to the results, and runs that are in them are not repeated.

Run:  python ablate.py judged/cifar10 --variants ablations.toml --results results.jsonl --seeds 1 2 3 --processes 6
"""
import argparse
import json
import math
import multiprocessing
import sys
import time
import tomllib
from pathlib import Path
from statistics import mean, stdev

import torch
from torch.nn import functional

import ablation_model
import images

# What a variant may change of the recipe.
DEFAULTS = {
    "gigas": 1.0,  # factor of the length
    "optimizer": "muon", "batch_size": 64, "learning_rate": 3e-3, "final": 0.01, "warmup": 0.15, "schedule": "cosine",
    "weight_decay": 0.1, "momentum": 0.95, "shift_rate": 1.0, "clip": 1.0, "average": 0.0, "label_smoothing": 0.1,
    "alternate_flips": True, "pad": 2, "cutout": 0, "small_until": 0.33, "small": 0.75, "refit": False,
    "images_per_class": 0,
}
BETAS = 0.9, 0.999
MUON = 3.4445, -4.7750, 2.0315


class Optimizer:
    """Muon for the kernels and matrices behind the first convolution, AdamW for the rest; or SGD for all."""

    def __init__(self, model, recipe):
        self.recipe, self.hidden, self.adam, self.sgd = recipe, {}, [], []
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        for name, p in model.named_parameters():
            is_shift = p.ndim == 1 and ("norm" in name or "branch" in name or "stem" in name)
            rate = recipe["shift_rate"] if is_shift else 1.0
            if not p.requires_grad:
                continue
            if recipe["optimizer"] == "sgd":
                self.sgd.append((p, rate))
            elif p.ndim > 1 and name.startswith(("stages", "blocks")) and ".gate" not in name:
                shape = tuple(sorted((p.shape[0], p.numel() // p.shape[0])))
                self.hidden.setdefault(shape, []).append(p)
            else:
                self.adam.append((p, rate))
        self.sums = {p: torch.zeros_like(p) for p in self.parameters}
        self.squares = {p: torch.zeros_like(p) for p, _ in self.adam}

    def state(self):
        return [*self.sums.values(), *self.squares.values()]

    @torch.no_grad()
    def step(self, rate, first, second):
        """`first` and `second` are the corrections of AdamW's averages; all three are tensors, so that a graph can be replayed."""
        if self.recipe["clip"]:
            grads = [p.grad for p in self.parameters]
            norm = torch.stack(torch._foreach_norm(grads)).norm() + 1e-6
            torch._foreach_mul_(grads, (self.recipe["clip"] / norm).clamp(max=1.0))
        decay, momentum = self.recipe["weight_decay"], self.recipe["momentum"]
        for (rows, columns), parameters in self.hidden.items():
            flat = [self.nesterov(p, p.grad, momentum).flatten(1) for p in parameters]
            updates = orthogonalize(torch.stack([u if u.shape[0] == rows else u.T for u in flat]))
            scale = 0.2 * math.sqrt(columns)
            for p, update in zip(parameters, updates):
                update = update if p.shape[0] == rows else update.T
                p.mul_(1 - rate * decay).sub_(update.reshape(p.shape) * (rate * scale))
        for p, factor in self.adam:
            self.sums[p].lerp_(p.grad, 1 - BETAS[0])
            self.squares[p].mul_(BETAS[1]).addcmul_(p.grad, p.grad, value=1 - BETAS[1])
            if p.ndim > 1:
                p.mul_(1 - rate * decay)
            p.sub_(self.sums[p] / ((self.squares[p] / second).sqrt() + 1e-8) * (rate * factor / first))
        for p, factor in self.sgd:
            grad = p.grad.add(p, alpha=decay) if p.ndim > 1 else p.grad
            p.sub_(self.nesterov(p, grad, momentum) * (rate * factor))

    def nesterov(self, p, grad, momentum):
        self.sums[p].mul_(momentum).add_(grad)
        return grad + momentum * self.sums[p]


def orthogonalize(x):
    a, b, c = MUON
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.float()


def learning_rate(recipe, done):
    if done < recipe["warmup"]:
        return recipe["learning_rate"] * max(done / recipe["warmup"], 1e-3)
    rest = (done - recipe["warmup"]) / (1 - recipe["warmup"])
    falling = 0.5 * (1 + math.cos(math.pi * rest)) if recipe["schedule"] == "cosine" else 1 - rest
    return recipe["learning_rate"] * (recipe["final"] + (1 - recipe["final"]) * falling)


class Data:
    def __init__(self, folder, device):
        train, test, classes = images.load(folder)
        self.classes = len(classes)
        self.train, self.test = ([torch.from_numpy(part).to(device) for part in split] for split in (train, test))
        some = self.train[0][:: max(1, len(self.train[0]) // 2000)].float()
        self.mean, self.std = some.mean((0, 1, 2)), some.std((0, 1, 2))

    def split(self, recipe):
        """Training images with labels, and those that are measured: the test split, and what is held out."""
        pixels, labels = self.train
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(99)).to(labels.device)
        if few := recipe["images_per_class"]:
            order = torch.cat([order[labels[order] == label][:few] for label in range(self.classes)])
        held = order[:0] if recipe["refit"] else order[::10]
        kept = order if recipe["refit"] else order[torch.arange(len(order), device=order.device) % 10 != 0]
        return (self.floats(pixels[kept]), labels[kept]), (self.floats(torch.cat([self.test[0], pixels[held]])),
                                                           torch.cat([self.test[1], labels[held]]))

    def floats(self, pixels):
        return ((pixels.float() - self.mean) / self.std).permute(0, 3, 1, 2)


class Batches:
    """Endless batches of images of one size, shifted and mirrored."""

    def __init__(self, pixels, labels, recipe, side, start_mirrored):
        self.recipe, self.side, self.labels, self.mirrored = recipe, side, labels, start_mirrored
        if side != pixels.shape[2]:
            pixels = functional.interpolate(pixels, (side, side), mode="bilinear", antialias=True)
        self.pad = max(1, round(recipe["pad"] * side / 32))
        self.padded = functional.pad(pixels, [self.pad] * 4, mode="reflect").permute(0, 2, 3, 1)
        self.queue, self.places = torch.empty(0, dtype=torch.long, device=labels.device), torch.arange(side, device=labels.device)

    def next(self):
        size, device, count = self.recipe["batch_size"], self.labels.device, len(self.labels)
        while len(self.queue) < size:
            self.queue = torch.cat([self.queue, torch.randperm(count, device=device)])
        chosen, self.queue = self.queue[:size], self.queue[size:]
        mirror = self.mirrored[chosen] if self.recipe["alternate_flips"] else torch.rand(size, device=device) < 0.5
        self.mirrored[chosen] = ~self.mirrored[chosen]
        down, right = torch.randint(2 * self.pad + 1, (2, size, 1), device=device)
        columns = right + torch.where(mirror[:, None], self.side - 1 - self.places, self.places)
        rows = down + self.places
        batch = self.padded[chosen[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        if cut := self.recipe["cutout"]:
            y, x = torch.randint(self.side, (2, size, 1), device=device)
            near = lambda centers: (self.places - centers).abs() < cut // 2
            batch = batch.masked_fill((near(y)[:, :, None] & near(x)[:, None, :])[:, None], 0)
        return batch, self.labels[chosen]


class Run:
    def __init__(self, data, variant, seed, gigas):
        torch.manual_seed(seed)
        self.recipe, shape = ({**part, **{key: value for key, value in variant.items() if key in part}}
                              for part in (DEFAULTS, ablation_model.DEFAULTS))
        self.train, self.measured = data.split(self.recipe)
        self.tests, side, device = len(data.test[1]), self.train[0].shape[2], self.train[0].device
        self.model = ablation_model.Model(shape, data.classes, self.train[0]).to(device, memory_format=torch.channels_last)
        self.optimizer = Optimizer(self.model, self.recipe)
        until, unit = self.recipe["small_until"], 2 ** len(shape["widths"])
        shares = [(round(side * self.recipe["small"] / unit) * unit, until), (side, 1 - until)] if until else [(side, 1.0)]
        budget = gigas * 1e9 * self.recipe["gigas"] / self.recipe["batch_size"]
        self.phases = [(size, max(1, round(budget * share / ablation_model.multiply_adds(shape, size)[1]))) for size, share in shares]
        self.steps = sum(steps for _, steps in self.phases)
        rows = [[learning_rate(self.recipe, step / self.steps), *(1 - beta ** (step + 1) for beta in BETAS)] for step in range(self.steps + 9)]
        self.table, self.step = torch.tensor(rows, device=device), torch.zeros(1, dtype=torch.long, device=device)
        self.average = [p.detach().clone() for p in self.optimizer.parameters] if self.recipe["average"] else []

    def trained(self):
        mirrored = torch.rand(len(self.train[1]), device=self.train[1].device) < 0.5
        self.model.train()
        for size, steps in self.phases:
            batches = Batches(*self.train, self.recipe, size, mirrored)
            inputs = [part.clone() for part in batches.next()]
            inputs[0] = inputs[0].contiguous(memory_format=torch.channels_last)
            replay = self.graph(inputs)
            for _ in range(steps):
                for place, part in zip(inputs, batches.next()):
                    place.copy_(part)
                replay()
        with torch.no_grad():
            for p, mean in zip(self.optimizer.parameters, self.average):
                p.copy_(mean)
        return self

    def update(self, pixels, labels):
        for p in self.optimizer.parameters:
            p.grad = None
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda, cache_enabled=False):
            logits = self.model(pixels)
        functional.cross_entropy(logits.float(), labels, label_smoothing=self.recipe["label_smoothing"]).backward()
        self.optimizer.step(*self.table.index_select(0, self.step)[0])
        self.step.add_(1)
        decay = torch.clamp((1.0 + self.step) / (10.0 + self.step), max=self.recipe["average"])[0]
        with torch.no_grad():
            for p, mean in zip(self.optimizer.parameters, self.average):
                mean.lerp_(p, 1 - decay)

    def graph(self, inputs):
        """A call that makes a step with these inputs; on a GPU, a graph of all its kernels."""
        if not inputs[0].is_cuda:
            return lambda: self.update(*inputs)
        kept = [*self.model.parameters(), *self.model.buffers(), *self.optimizer.state(), self.step, *self.average]
        before = [part.detach().clone() for part in kept]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.update(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.update(*inputs)
        with torch.no_grad():
            for part, value in zip(kept, before):
                part.copy_(value)
        return graph.replay

    @torch.no_grad()
    def accuracy(self):
        self.model.eval()
        pixels, labels = self.measured
        side = pixels.shape[2]
        padded = functional.pad(pixels, [1] * 4, mode="reflect")
        one, mirror = self.probabilities(pixels), self.probabilities(pixels.flip(3))
        shifted = sum(self.probabilities(view) + self.probabilities(view.flip(3))
                      for view in (padded[:, :, :side, :side], padded[:, :, 2:, 2:]))
        views = {"one": one, "mirror": one + mirror, "six": 0.5 * (one + mirror) + 0.25 * shifted}
        right = {name: (answer.argmax(1) == labels).float() for name, answer in views.items()}
        return {name: right.mean().item() for name, right in right.items()} | {"test": right["mirror"][: self.tests].mean().item()}

    def probabilities(self, pixels):
        parts = []
        for part in pixels.split(2000):
            with torch.autocast(part.device.type, torch.bfloat16, enabled=part.is_cuda):
                parts.append(self.model(part.contiguous(memory_format=torch.channels_last)).float().softmax(1))
        return torch.cat(parts)


def work(args, jobs, lock):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    data = Data(args.folder, device)
    while (job := jobs.get()) is not None:
        name, seed = job
        start = time.perf_counter()
        run = Run(data, args.variants[name], seed, args.gigas).trained()
        line = {"name": name, "seed": seed, **run.accuracy(), "epochs": run.steps * run.recipe["batch_size"] / len(run.train[1]),
                "parameters": sum(p.numel() for p in run.model.parameters()), "seconds": time.perf_counter() - start}
        with lock, open(args.results, "a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), file=sys.stderr, flush=True)


def table(results):
    groups = {}
    for line in results:
        groups.setdefault(line["name"], []).append(line)
    yield "| variant | seeds | epochs | image | and mirror image | six views |\n|---|---|---|---|---|---|"
    for name, lines in sorted(groups.items(), key=lambda group: -mean(line["mirror"] for line in group[1])):
        cells = []
        for key in ("one", "mirror", "six"):
            values = [100 * line[key] for line in lines]
            cells.append(f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else ""))
        yield f"| {name} | {len(lines)} | {lines[0]['epochs']:.1f} | {' | '.join(cells)} |"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="train/CLASS/* and test/CLASS/*, all images of one size")
    parser.add_argument("--variants", type=Path, required=True, metavar="FILE", help="TOML: a table of changed keys for each variant")
    parser.add_argument("--results", type=Path, required=True, metavar="FILE", help="JSON lines, one per run")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="variants; by default all of them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="N")
    parser.add_argument("--gigas", type=float, default=36_000, help="multiply-adds of forward passes in a run, in billions")
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    args.variants = tomllib.loads(args.variants.read_text())
    known = DEFAULTS.keys() | ablation_model.DEFAULTS.keys()
    for name, variant in args.variants.items():
        if unknown := variant.keys() - known:
            parser.error(f"{name}: there is no {', '.join(sorted(unknown))}; the keys are {', '.join(sorted(known))}")
    if unknown := set(args.only or []) - args.variants.keys():
        parser.error(f"--only {' '.join(unknown)}: there is no such variant")
    return args


def main():
    args = arguments()
    stored = lambda: [json.loads(line) for line in args.results.read_text().splitlines()] if args.results.exists() else []
    done = {(line["name"], line["seed"]) for line in stored()}
    context = multiprocessing.get_context("spawn")
    jobs, lock = context.Queue(), context.Lock()
    for job in [(name, seed) for seed in args.seeds for name in args.only or args.variants if (name, seed) not in done]:
        jobs.put(job)
    workers = [context.Process(target=work, args=(args, jobs, lock)) for _ in range(args.processes)]
    for worker in workers:
        jobs.put(None)
        worker.start()
    for worker in workers:
        worker.join()
    print("\n".join(table(stored())))


if __name__ == "__main__":
    main()
