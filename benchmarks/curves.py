"""Measured curves of cost, one plot each: how a SOC layer grows, and where the time of a training step goes.

Growth with channels, side, degree and batch: forward and backward of one SOC2d layer (3 x 3, as many channels out as
in), float32, two threads, the best of several rounds; beside it a plain nn.Conv2d of the same shape and the literal
Algorithm 1 of degree 5. Writes benchmarks/records/curves.json and docs/images/cost-*.png.

Time spent: LipConvnet-5 of width 32, batch 128, memory kept as the commands that train keep it. Every layer runs
forward and backward alone, on its input in the network; its filter is made (assembled, normalised) and the gradient
taken back to the parameters a second time alone. Writes benchmarks/records/time-spent.json and
docs/images/time-spent.png.

Run: python benchmarks/curves.py
"""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor, nn

from skewconv.algorithm_1 import LiteralSOC
from skewconv.bench import side_by_side
from skewconv.models import LipConvnet
from skewconv.nn import SOC2d
from skewconv.records import make_record, write_record
from skewconv.train.environment import keep_freed_memory

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
BATCH, WIDTH = 128, 32


def measure(channels: int, side: int, degree: int, batch: int) -> dict[str, float]:
    """Seconds of one step of each contestant."""
    torch.manual_seed(0)
    x = torch.randn(batch, channels, side, side, requires_grad=True)
    soc = SOC2d(channels, channels, 3, train_degree=degree)
    layers: dict[str, nn.Module] = dict(
        zip(NAMES, (soc, LiteralSOC(soc), nn.Conv2d(channels, channels, 3, padding=1)), strict=True)
    )
    work = {name: (lambda layer=layer: layer(x).sum().backward()) for name, layer in layers.items()}
    return {name: min(timing) for name, timing in side_by_side(work, rounds=5, warmup=1, threads=2).items()}


def growth() -> None:
    """Measure one layer along each axis, record, draw."""
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


def inputs_of(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The input of each layer without children."""
    found: dict[str, Tensor] = {}
    layers = [(name, layer) for name, layer in model.named_modules() if not list(layer.children())]
    hooks = [
        layer.register_forward_hook(lambda _, given, __, name=name: found.__setitem__(name, given[0].detach()))
        for name, layer in layers
    ]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return found


def best(work: Callable[[], object]) -> float:
    """Milliseconds."""
    return 1e3 * min(side_by_side({"": work}, rounds=7, threads=2)[""])


def parts(layer: nn.Module, x: Tensor) -> dict[str, float]:
    """Milliseconds of a layer's filter and of everything else."""
    x = x.requires_grad_()
    whole = best(lambda: layer(x).sum().backward())
    if not isinstance(layer, SOC2d):
        return {"filter": 0.0, "rest": whole}
    direction = torch.randn_like(layer.weight.detach())
    made = min(whole, best(lambda: layer.weight.backward(direction)))
    return {"filter": made, "rest": whole - made}


def label(layer: nn.Module, x: Tensor) -> str:
    """The type of a layer, its size and its image."""
    image = "x".join(map(str, x.shape[1:]))
    kernel = (
        f" {layer.kernel_size[0]}x{layer.kernel_size[1]}, {layer.channels} channels"
        if hasattr(layer, "channels")
        else ""
    )
    return f"{type(layer).__name__}{kernel} on {image}"


def time_spent() -> None:
    """Measure each layer of a network, record, draw."""
    keep_freed_memory()
    torch.manual_seed(0)
    model = LipConvnet(5, width=WIDTH).train()
    given = inputs_of(model, torch.rand(BATCH, 3, 32, 32))
    rows = []
    for name, x in given.items():
        layer = model.get_submodule(name)
        rows.append({"layer": label(layer, x), **parts(layer, x)})
    total = sum(row["filter"] + row["rest"] for row in rows)
    for row in rows:
        print(f"{row['layer']:<44}{row['filter']:>8.1f} ms filter{row['rest']:>8.1f} ms rest")
    print(f"{'all layers':<44}{total:>8.1f} ms")
    record = make_record("time-spent", config={"batch": BATCH, "width": WIDTH}, seed=0, results={"layers": rows})
    write_record(ROOT / "benchmarks" / "records" / "time-spent.json", record)
    shown = [row for row in rows if row["filter"] + row["rest"] > total / 200][::-1]
    figure, plot = plt.subplots(figsize=(8, 4), dpi=120)
    names = [row["layer"] for row in shown]
    plot.barh(names, [row["rest"] for row in shown], label="products with the Jacobian, or the layer's whole work")
    plot.barh(names, [row["filter"] for row in shown], left=[row["rest"] for row in shown], label="making the filter")
    plot.set_xlabel("forward + backward, ms")
    plot.set_title(f"LipConvnet-5, width {WIDTH}, batch {BATCH}: a training step", fontsize=10)
    plot.legend(fontsize=8)
    plot.grid(True, axis="x", alpha=0.3)
    figure.tight_layout()
    (ROOT / "docs" / "images").mkdir(parents=True, exist_ok=True)
    figure.savefig(ROOT / "docs" / "images" / "time-spent.png")
    plt.close(figure)


if __name__ == "__main__":
    growth()
    time_spent()
