"""Claim: a strided BCOP2d trains within three times the time of orthogonium's AOC, and no slower than SOC2d.

What against what: layers from 32 to 32 channels with kernel size 5 and stride 4, on a batch of 16 images of 32 x 32,
forward and backward with the gradients of images and parameters, in training mode, float32, two threads, in turn in
one process; the best round of each counts. The layers of this library fold the stride into 512 channels first, so that
a kernel of 5 x 5 reaches over 20 x 20 pixels of the image; AOC's reaches over 5 x 5 of them, with a fiftieth of the
parameters, and takes less to make.
orthogonium comes with the extra bench; where it is not installed, its line and its claim are left out. Writes
benchmarks/records/strided.json and the table of docs/performance.md.

Run: python benchmarks/bench_strided.py [--rounds 15] [--no-record]
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tables import write_pages
from torch import Tensor, nn

from skewconv.bench import at_most, side_by_side
from skewconv.nn import BCOP2d, Cayley2d, SOC2d
from skewconv.records import make_record, write_record

HERE = Path(__file__).parent
CHANNELS, KERNEL, STRIDE, BATCH, SIZE, THREADS = 32, 5, 4, 16, 32, 2
AOC = "orthogonium AOC"
TARGETS = {AOC: 3.0, "SOC2d": 1.0}


def contestants() -> dict[str, nn.Module]:
    """Each layer by its name."""
    torch.manual_seed(0)
    shape: tuple[Any, ...] = (CHANNELS, CHANNELS, KERNEL)
    found: dict[str, nn.Module] = {
        "nn.Conv2d": nn.Conv2d(*shape, stride=STRIDE, padding=KERNEL // 2),
        "BCOP2d": BCOP2d(*shape, stride=STRIDE),
        "SOC2d": SOC2d(*shape, stride=STRIDE),
        "Cayley2d": Cayley2d(*shape, stride=STRIDE),
    }
    if find_spec("orthogonium") is not None:
        kind = import_module("orthogonium.layers.conv.AOC").AdaptiveOrthoConv2d
        found[AOC] = kind(*shape, stride=STRIDE, padding=KERNEL // 2, padding_mode="circular")
    return found


def training_step(layer: nn.Module, images: Tensor) -> Callable[[], None]:
    """Forward and backward."""

    def run() -> None:
        layer.zero_grad()
        images.grad = None
        layer(images).square().sum().backward()

    return run


def main() -> int:
    """Measure, write the record and the table, print; 1 if a claim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-record", action="store_true", help="print only")
    arguments = parser.parse_args()
    layers, images = contestants(), torch.randn(BATCH, CHANNELS, SIZE, SIZE, requires_grad=True)
    runs = {name: training_step(layer, images) for name, layer in layers.items()}
    timings = side_by_side(runs, rounds=arguments.rounds, threads=THREADS)
    rows = [
        {
            "name": name,
            "seconds": min(timings[name]),
            "parameters": sum(parameter.numel() for parameter in layer.parameters()),
            "rounds": timings[name],
        }
        for name, layer in layers.items()
    ]
    best = {name: min(timing) for name, timing in timings.items()}
    claims = [
        at_most(f"strided training step, BCOP2d / {name}", best["BCOP2d"] / best[name], target)
        for name, target in TARGETS.items()
        if name in best
    ]
    for row in rows:
        print(f"  {row['name']:16} {row['seconds'] * 1e3:8.1f} ms {row['parameters']:10,} parameters")
    print(*claims, sep="\n")
    if not arguments.no_record:
        shape = {"channels": CHANNELS, "kernel": KERNEL, "stride": STRIDE, "batch": BATCH, "size": SIZE}
        beside = {name: metadata.version(name) for name in ("orthogonium",) if AOC in best}
        results = {"versions": beside, "rows": rows, "claims": [asdict(claim) for claim in claims]}
        record = make_record("bench", config={**shape, "threads": THREADS}, seed=0, results=results)
        write_record(HERE / "records" / "strided.json", record)
        write_pages()
    return 0 if all(claim.met for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
