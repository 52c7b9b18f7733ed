"""Claim: where a plan takes the Winograd engine, its products are no slower than convolutions: from 64 channels on, or
from 256 where oneDNN is faster than MKL, which this measures too.

What against what: one 3x3 product with as many channels out as in, zero padding, float32, batch 128: the library's
convolution (the faster of both memory formats) against the engine's product, its transforms included, and against its
36 multiplications of matrices alone, as the library makes them and by torch.bmm. The best of several rounds, side by
side. Also the error of both against float64, as a share of the result's norm.
Writes benchmarks/records/winograd.json, winograd-onednn.json where that is the faster library, or winograd-avx2.json
where there is no AVX-512, with versions and machine, and the table of docs/performance.md.

Run: python benchmarks/bench_winograd.py [--threads 2] [--rounds 7] [--batch 128] [--cpu-time]
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tables import write_pages
from torch import Tensor

from skewconv.bench import side_by_side
from skewconv.ops import plan
from skewconv.ops.engines.winograd_engine import WinogradProducts, transformed
from skewconv.ops.products import bmm, onednn_is_faster
from skewconv.ops.recurrence import ChannelWidths
from skewconv.records import make_record, write_record
from skewconv.train.environment import keep_freed_memory

SHAPES = [(channels, side) for side in (16, 8, 4) for channels in (64, 128, 256, 512)]
CLAIM = 1.0


def measure(channels: int, side: int, arguments: argparse.Namespace) -> dict[str, float | bool]:
    """Seconds of each contestant, and their errors."""
    torch.manual_seed(0)
    first = torch.randn(arguments.batch, channels, side, side)
    weight = torch.randn(channels, channels, 3, 3) / (9 * channels) ** 0.5
    last, last_weight = (t.to(memory_format=torch.channels_last) for t in (first, weight))
    state, filters = first.permute(2, 3, 0, 1).contiguous(), transformed(weight)
    products = WinogradProducts(ChannelWidths(1, channels, channels, channels), "zeros")
    strips = -(-side // 4)
    tiles, matrices = torch.randn(36, strips * arguments.batch, channels), filters.mT
    chosen = plan(first.shape, weight.shape, degree=3, truncation_error=1e-2).engine

    def winograd(state: Tensor) -> Tensor:
        return products.product(state, filters, channels, None, 0.0)

    contestants = {
        "channels last": lambda: F.conv2d(last, last_weight, padding=1),
        "channels first": lambda: F.conv2d(first, weight, padding=1),
        "products": lambda: [bmm(tiles, matrices) for _ in range(strips)],
        "torch_products": lambda: [torch.bmm(tiles, matrices) for _ in range(strips)],
        "winograd": lambda: winograd(state),
    }
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    found = side_by_side(contestants, rounds=arguments.rounds, threads=arguments.threads, clock=clock)
    few = first[:2]
    exact = F.conv2d(few.double(), weight.double(), padding=1)
    made = {
        "convolution": F.conv2d(few, weight, padding=1),
        "winograd": winograd(few.permute(2, 3, 0, 1).contiguous()).permute(2, 3, 0, 1),
    }
    return {
        "channels": channels,
        "side": side,
        "taken": chosen == "winograd",
        "convolution_seconds": min(min(found[f"channels {order}"]) for order in ("last", "first")),
        **{f"{name}_seconds": min(found[name]) for name in ("products", "torch_products", "winograd")},
        **{f"{name}_error": float((y.double() - exact).norm() / exact.norm()) for name, y in made.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds, for a machine that others use")
    arguments = parser.parse_args()
    keep_freed_memory()
    rows = []
    with torch.inference_mode():
        for channels, side in SHAPES:
            row = measure(channels, side, arguments)
            rows.append(row)
            gain = row["convolution_seconds"] / row["winograd_seconds"]
            alone = row["convolution_seconds"] / row["products_seconds"]
            target = f"target >= {CLAIM}" if row["taken"] else "not taken"
            print(
                f"{channels:4} channels, {side:2} x {side:2}: convolution {row['convolution_seconds'] * 1e3:7.1f} ms, "
                f"products alone {alone:.2f} times as fast, all of it {gain:.2f} ({target})",
                flush=True,
            )
    results = {
        "claim": CLAIM,
        "batch": arguments.batch,
        "threads": arguments.threads,
        "cpu_time": arguments.cpu_time,
        "rows": rows,
    }
    name = "winograd-onednn" if onednn_is_faster() else "winograd"
    name = name if "AVX512" in torch.backends.cpu.get_cpu_capability() else "winograd-avx2"
    record = make_record("bench", config={}, seed=0, results=results)
    write_record(Path(__file__).parent / "records" / f"{name}.json", record)
    write_pages()


if __name__ == "__main__":
    main()
