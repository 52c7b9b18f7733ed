"""Claim: a critic of this library comes at least as near to a known Wasserstein-1 distance as one of deel-torchlip.

What against what: networks of five layers in two shapes, "3 x 3" (two convolutions, three linear layers) and "patches"
(the convolutions act on pixels or patches that do not overlap), and of four in the shape by which deel-torchlip's own
pages measure this distance, "dense". Ours are of SOC2d, BCOP2d for patches, and OrthogonalLinear; theirs of
SpectralConv2d and SpectralLinear with FrobeniusLinear at the end, initialised as they come, as those pages advise.
Widths, activations (sorts) and the folding of pixels into channels are the same. The numbers of parameters are within
6% of each other, but for the dense networks on spheres: ours stores more there, 18,993 against 12,545.

Three pairs of distributions whose distance is known, for a 1-Lipschitz function attains the length of a plan:
"spheres" of radius 1 and 3 in 16 dimensions: 2. 8 x 8 "digits, moved" by a fixed smooth v: |v|, which is 2. "digits,
parted": v is added on one side of the hyperplane across it that halves them, and subtracted on the other: 2 as well,
but no linear function sees it.

Loss (Kantorovich-Rubinstein), Adam, cosine schedule, steps, batches and seeds are the same; the time is not, and the
record has the processor seconds of a step. Each has three rates, a factor of three apart and chosen for each library so
that the best is seldom at an end: those of deel-torchlip are lower, for it diverges at higher ones. The rate with the
best mean over seeds on training points counts. An estimate is the difference of means on points not seen in training,
each with its image under the plan so that samples add no noise, divided by a proven Lipschitz bound of the network: of
theirs, of the plain layers that its own vanilla_export makes, as matrices on images of this size; often far below the 1
that it promises, and then to its advantage. Every estimate is a proven lower bound of the distance, and the larger is
the better. One thread, three seeds, about a quarter of an hour.
Writes benchmarks/records/wasserstein.json; `python benchmarks/tables.py` makes the words and the table of tutorial 10.

Run: python benchmarks/bench_wasserstein.py [--pairs spheres ...] [--seeds 0 1 2] [--no-record]
"""

import argparse
import importlib.metadata
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from deel import torchlip
from sklearn.datasets import load_digits
from torch import Tensor

from skewconv import nn
from skewconv.records import make_record, write_record
from skewconv.train import hkr_loss

RECORD = Path(__file__).parent / "records" / "wasserstein.json"
RATES = {"skewconv": (0.01, 0.03, 0.1), "deel-torchlip": (0.003, 0.01, 0.03)}
SEEDS, STEPS, BATCH, FRESH, THREADS = (0, 1, 2), 300, 128, 5000, 1
SHAPES = ("3 x 3", "patches", "dense")
NEAR, FAR, LENGTH = 1.0, 3.0, 2.0

Points = Callable[[int, bool], Tensor]
Plan = Callable[[Tensor], Tensor]


def spheres() -> tuple[Points, Plan]:
    """Points of the small sphere as images, and the map to the large one."""

    def points(count: int, fresh: bool) -> Tensor:
        return NEAR * torch.nn.functional.normalize(torch.randn(count, 16), dim=1).reshape(-1, 1, 4, 4)

    return points, lambda x: x * (FAR / NEAR)


def digits(parted: bool) -> tuple[Points, Plan]:
    """Handwritten digits, a quarter of them kept for the end, and the addition of a smooth spot, or of its negative."""
    images = torch.from_numpy(load_digits().images).float()[:, None] / 16
    images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
    kept, shown = images[: len(images) // 4], images[len(images) // 4 :]
    along = torch.linspace(-1, 1, 8)
    v = torch.exp(-3 * (along[:, None] ** 2 + along**2))
    v = LENGTH * v / v.norm()
    middle = (shown * v).sum((1, 2, 3)).median()

    def points(count: int, fresh: bool) -> Tensor:
        return kept if fresh else shown[torch.randint(len(shown), (count,))]

    def plan(x: Tensor) -> Tensor:
        side = torch.where((x * v).sum((1, 2, 3)) >= middle, 1.0, -1.0)
        return x + v * side[:, None, None, None] if parted else x + v

    return points, plan


PAIRS: dict[str, tuple[Callable[[], tuple[Points, Plan]], int, float]] = {
    "spheres": (spheres, 4, FAR - NEAR),
    "digits, moved": (lambda: digits(parted=False), 8, LENGTH),
    "digits, parted": (lambda: digits(parted=True), 8, LENGTH),
}


def ours(inputs: int, outputs: int, kernel: int = 0, stride: int = 1) -> list[torch.nn.Module]:
    """A layer of this library: linear, 3 x 3, or 1 x 1 on the folded pixels of patches."""
    if not kernel:
        return [nn.OrthogonalLinear(inputs, outputs)]
    return [(nn.SOC2d if kernel == 3 else nn.BCOP2d)(inputs, outputs, kernel, stride=stride)]


def theirs(inputs: int, outputs: int, kernel: int = 0, stride: int = 1) -> list[torch.nn.Module]:
    """A layer of deel-torchlip: linear, 3 x 3 after the folding that is a part of ours, or patches."""
    if not kernel:
        return [(torchlip.FrobeniusLinear if outputs == 1 else torchlip.SpectralLinear)(inputs, outputs)]
    if kernel == 1:
        return [torchlip.SpectralConv2d(inputs, outputs, stride, stride=stride)]
    folding = [torchlip.InvertibleDownSampling(stride)] if stride > 1 else []
    return [*folding, torchlip.SpectralConv2d(inputs * stride**2, outputs, 3, padding=1)]


def network(library: str, shape: str, size: int) -> torch.nn.Sequential:
    """Layers with a sort after each but the last: of pairs, or of all channels in a dense network."""
    layer, sort = (ours, nn.GroupSort) if library == "skewconv" else (theirs, torchlip.GroupSort)
    if shape == "dense":
        steps = [[torch.nn.Flatten(), *layer(size * size, 128)], layer(128, 64)]
    else:
        kernel = 3 if shape == "3 x 3" else 1
        steps = [layer(1, 16, kernel, size // 4), layer(16, 32, kernel, 2), [torch.nn.Flatten(), *layer(128, 64)]]
    steps += [layer(64, 32), layer(32, 1)]
    return torch.nn.Sequential(
        *[part for step in steps for part in (*step, sort(None if shape == "dense" else 2))][:-1]
    )


@nn.register_bound(torchlip.GroupSort)
def sorting(module: torch.nn.Module, shape: tuple[int, ...]) -> float:
    """A sort never expands."""
    return 1.0


def bound(critic: torch.nn.Sequential, size: int) -> float:
    """Proven, of a network in evaluation; of deel-torchlip's after its own export."""
    plain, x = torch.nn.Sequential(), torch.zeros(1, 1, size, size)
    for part in critic:
        layer = part.vanilla_export() if hasattr(part, "vanilla_export") else part
        plain.append(as_matrix(layer, x.shape[1:]) if isinstance(layer, torch.nn.Conv2d) else layer)
        x = layer(x)
    return nn.lipschitz_upper_bound(plain, (1, size, size))


def as_matrix(layer: torch.nn.Conv2d, shape: torch.Size) -> torch.nn.Sequential:
    """The linear part of a convolution, by its very weights: the stride and the border are in the bound of a matrix."""
    unit = torch.eye(shape.numel()).reshape(-1, *shape)
    columns = torch.nn.functional.conv2d(unit, layer.weight, None, layer.stride, layer.padding)
    matrix = torch.nn.Linear(len(unit), columns[0].numel(), bias=False)
    matrix.weight.data = columns.flatten(1).T.contiguous()
    return torch.nn.Sequential(torch.nn.Flatten(), matrix, torch.nn.Unflatten(1, columns.shape[1:]))


def run(pair: str, library: str, shape: str, rate: float, seed: int) -> dict[str, float]:
    """Train one critic; what it finds on training points and on others."""
    make, size, _ = PAIRS[pair]
    points, plan = make()
    torch.manual_seed(seed)
    critic, labels = network(library, shape, size), torch.arange(2 * BATCH) // BATCH
    optimizer = torch.optim.Adam(critic.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    torch.manual_seed(1000 + seed)  # the same batches for all
    start = time.process_time()
    for _ in range(STEPS):
        x = torch.cat([points(BATCH, False), plan(points(BATCH, False))])
        optimizer.zero_grad()
        hkr_loss(critic(x), labels, alpha=0.0).backward()
        optimizer.step()
        schedule.step()
    seconds = (time.process_time() - start) / STEPS
    with torch.no_grad():
        critic(x)  # deel-torchlip evaluates with the weights of the last pass in training
        critic.eval()
        gains = [(critic(plan(p)) - critic(p)).mean().item() for p in (points(FRESH, False), points(FRESH, True))]
        if not all(map(math.isfinite, gains)):
            return {"training": -math.inf, "seconds_a_step": seconds}
        proven = bound(critic, size)
    trained, found = (gain / proven for gain in gains)
    return {"training": trained, "found": found, "undivided": gains[1], "bound": proven, "seconds_a_step": seconds}


def main() -> None:
    """Measure, write the record, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--no-record", action="store_true", help="print only")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    rows: list[dict[str, Any]] = []
    for pair, shape, library in itertools.product(arguments.pairs, SHAPES, RATES):
        runs = {rate: [run(pair, library, shape, rate, seed) for seed in arguments.seeds] for rate in RATES[library]}
        rate = max(runs, key=lambda rate: sum(each["training"] for each in runs[rate]))
        _, size, exact = PAIRS[pair]
        row = {"pair": pair, "shape": shape, "library": library, "exact": exact, "rate": rate}
        row["parameters"] = sum(each.numel() for each in network(library, shape, size).parameters())
        rows.append({**row, "runs": {f"{rate:g}": each for rate, each in runs.items()}})
        found = " ".join(f"{each['found']:.4f}" for each in runs[rate])
        milliseconds = 1e3 * min(each["seconds_a_step"] for each in runs[rate])
        print(f"{pair:15} {shape:8} {library:14} {found}  at {rate:<5g} {milliseconds:.1f} ms a step", flush=True)
    if not arguments.no_record:
        config = {"rates": RATES, "seeds": arguments.seeds, "steps": STEPS, "batch": BATCH, "threads": THREADS}
        config["deel-torchlip"] = importlib.metadata.version("deel-torchlip")
        write_record(RECORD, make_record("bench", config=config, seed=None, results={"rows": rows}))


if __name__ == "__main__":
    main()
