"""How the cost of a SOC layer grows with channels, side, degree and batch: measured curves, one plot each.

Forward and backward of one SOC2d layer (3 x 3, as many channels out as in), float32, two threads, the best of several
rounds; beside it a plain nn.Conv2d of the same shape and the literal Algorithm 1 of degree 5. Writes
benchmarks/records/curves.json and docs/images/cost-*.png.

Run: python benchmarks/curves.py
"""

from pathlib import Path

import matplotlib as mpl
import torch
from torch import nn

from skewconv.bench import LiteralSOC, side_by_side
from skewconv.nn import SOC2d
from skewconv.records import make_record, write_record

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
BASE = {"channels": 64, "side": 16, "degree": 3, "batch": 64}
SWEEPS = {
    "channels": (8, 16, 32, 64, 128, 256),
    "side": (1, 2, 4, 8, 16, 32),
    "degree": (1, 2, 3, 4, 6, 8, 12, 16),
    "batch": (1, 4, 16, 64, 256),
}
NAMES = ("SOC", "Algorithm 1, degree 5", "nn.Conv2d")


def measure(channels: int, side: int, degree: int, batch: int) -> dict[str, float]:
    """Seconds of one step of each contestant."""
    torch.manual_seed(0)
    x = torch.randn(batch, channels, side, side, requires_grad=True)
    soc = SOC2d(channels, channels, 3, train_degree=degree)
    layers: dict[str, nn.Module] = dict(
        zip(NAMES, (soc, LiteralSOC(soc), nn.Conv2d(channels, channels, 3, padding=1)), strict=True)
    )
    work = {name: (lambda layer=layer: layer(x).sum().backward()) for name, layer in layers.items()}
    return {name: timing.best for name, timing in side_by_side(work, rounds=5, warmup=1, threads=2).items()}


def main() -> None:
    """Measure, record, draw."""
    results: dict[str, list[dict[str, float]]] = {}
    for axis, values in SWEEPS.items():
        results[axis] = []
        for value in values:
            seconds = measure(**{**BASE, axis: value})
            results[axis].append({axis: value, **seconds})
            print(axis, value, {name: f"{s * 1e3:.2f} ms" for name, s in seconds.items()}, flush=True)
    record = make_record("curves", config={**BASE}, seed=0, results=results)
    write_record(ROOT / "benchmarks" / "records" / "curves.json", record)
    (ROOT / "docs" / "images").mkdir(parents=True, exist_ok=True)
    for axis, rows in results.items():
        figure, plot = plt.subplots(figsize=(6, 4), dpi=120)
        for name in NAMES:
            plot.plot([row[axis] for row in rows], [row[name] * 1e3 for row in rows], marker="o", label=name)
        plot.set_xscale("log", base=2)
        plot.set_yscale("log")
        plot.set_xlabel(axis)
        plot.set_ylabel("forward + backward, ms")
        fixed = ", ".join(f"{k} {v}" for k, v in BASE.items() if k != axis)
        plot.set_title(f"one 3 x 3 layer: {fixed}", fontsize=10)
        plot.grid(True, which="both", alpha=0.3)
        plot.legend(fontsize=8)
        figure.tight_layout()
        figure.savefig(ROOT / "docs" / "images" / f"cost-{axis}.png")
        plt.close(figure)


if __name__ == "__main__":
    main()
