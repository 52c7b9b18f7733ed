"""Question: can F(4x4, 3x3), with a quarter of the multiplications, turn that into time by batched products here?

What against what: one 3x3 product with as many channels out as in, zero padding, float32, batch 128, against the
library's convolution (the faster of both memory formats): the 36 batched products of Winograd's algorithm alone, which
no implementation can be faster than, and all of it, with its transforms written as products too (Lavin and Gray, "Fast
algorithms for convolutional neural networks", 2016). The best of several rounds, side by side. An engine would be built
if all of it won by 1.2. Also the largest error of both against float64, relative to the largest output.
Writes benchmarks/records/winograd.json with versions and machine, and the table of docs/performance.md.

Run: python benchmarks/bench_winograd.py [--threads 2] [--rounds 7] [--batch 128] [--cpu-time]
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tables import write_pages
from torch import Tensor

from skewconv.bench.timing import side_by_side
from skewconv.records import make_record, write_record

SHAPES = [(channels, side) for side in (16, 8) for channels in (64, 128, 256, 512)]
CLAIM = 1.2
# B^T, G and A^T of F(4, 3): points 0, 1, -1, 2, -2 and infinity.
INPUT = torch.tensor(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    dtype=torch.float64,
)
FILTER = (
    torch.tensor([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], dtype=torch.float64) / 24
)
OUTPUT = torch.tensor(
    [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], dtype=torch.float64
)


class Winograd:
    """x -> W * x for images whose sides are multiples of four.

    Args:
        weight: (c_out, c_in, 3, 3).
    """

    def __init__(self, weight: Tensor) -> None:
        both = torch.kron(FILTER, FILTER) @ weight.double().flatten(2).permute(2, 1, 0).flatten(1)
        self.filters = both.view(36, weight.shape[1], weight.shape[0]).to(weight.dtype)
        self.there = torch.kron(INPUT, INPUT).to(weight.dtype)
        self.back = torch.kron(OUTPUT, OUTPUT).to(weight.dtype)

    def tiles(self, x: Tensor) -> Tensor:
        """(n, c, h, w) -> (36, n h w / 16, c): every tile of 6 x 6 pixels, transformed."""
        c = x.shape[1]
        windows = F.pad(x, (1, 1, 1, 1)).permute(0, 2, 3, 1).unfold(1, 6, 4).unfold(2, 6, 4)
        pixels = windows.permute(4, 5, 0, 1, 2, 3).reshape(36, -1)
        return (self.there @ pixels).view(36, -1, c)

    def products(self, tiles: Tensor) -> Tensor:
        """The multiplications."""
        return torch.bmm(tiles, self.filters)

    def __call__(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        made = self.products(self.tiles(x))
        y = (self.back @ made.flatten(1)).view(4, 4, n, h // 4, w // 4, -1)
        return y.permute(2, 5, 3, 0, 4, 1).reshape(n, -1, h, w)


def measure(channels: int, side: int, arguments: argparse.Namespace) -> dict[str, float | int]:
    """Seconds of each contestant, and their errors."""
    torch.manual_seed(0)
    x = torch.randn(arguments.batch, channels, side, side).to(memory_format=torch.channels_last)
    weight = torch.randn(channels, channels, 3, 3) / (9 * channels) ** 0.5
    last, first = weight.to(memory_format=torch.channels_last), x.contiguous()
    winograd = Winograd(weight)
    tiles = winograd.tiles(x)
    contestants = {
        "channels last": lambda: F.conv2d(x, last, padding=1),
        "channels first": lambda: F.conv2d(first, weight, padding=1),
        "products": lambda: winograd.products(tiles),
        "winograd": lambda: winograd(x),
    }
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    found = side_by_side(contestants, rounds=arguments.rounds, threads=arguments.threads, clock=clock)
    few = x[:2]
    exact = F.conv2d(few.double(), weight.double(), padding=1)
    errors = {
        name: float((y.double() - exact).abs().max() / exact.abs().max())
        for name, y in (("convolution", F.conv2d(few, weight, padding=1)), ("winograd", winograd(few)))
    }
    return {
        "channels": channels,
        "side": side,
        "convolution_seconds": min(found[f"channels {order}"].best for order in ("last", "first")),
        **{f"{name}_seconds": found[name].best for name in ("products", "winograd")},
        **{f"{name}_error": error for name, error in errors.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds, for a machine that others use")
    arguments = parser.parse_args()
    rows = []
    with torch.inference_mode():
        for channels, side in SHAPES:
            row = measure(channels, side, arguments)
            rows.append(row)
            gain = row["convolution_seconds"] / row["winograd_seconds"]
            alone = row["convolution_seconds"] / row["products_seconds"]
            print(
                f"{channels:4} channels, {side:2} x {side:2}: convolution {row['convolution_seconds'] * 1e3:7.1f} ms, "
                f"products alone {alone:.2f} times as fast, all of it {gain:.2f} (an engine from {CLAIM})",
                flush=True,
            )
    results = {
        "claim": CLAIM,
        "batch": arguments.batch,
        "threads": arguments.threads,
        "cpu_time": arguments.cpu_time,
        "rows": rows,
    }
    write_record(
        Path(__file__).parent / "records" / "winograd.json", make_record("bench", config={}, seed=0, results=results)
    )
    write_pages()


if __name__ == "__main__":
    main()
