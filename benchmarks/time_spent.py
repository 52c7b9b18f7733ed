"""Where the time of a training step goes: layer by layer, the making of each filter apart from the products with it.

LipConvnet-5 of width 32, batch 128, float32, two threads, memory kept as the commands that train keep it. Every layer
runs forward and backward alone, on the input it meets in the network; its filter is made (assembled, normalised) and
the gradient taken back to the parameters a second time alone. The best of several rounds counts. Writes
benchmarks/records/time-spent.json and docs/images/time-spent.png.

Run: python benchmarks/time_spent.py
"""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor, nn

from skewconv.bench.timing import side_by_side
from skewconv.models import LipConvnet
from skewconv.nn import SOC2d
from skewconv.records import make_record, write_record
from skewconv.train.hardware import keep_freed_memory

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
BATCH, WIDTH = 128, 32


def inputs_of(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """What each layer without children is given."""
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
    return 1e3 * side_by_side({"": work}, rounds=7, threads=2)[""].best


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
    """What the layer is, and on which image."""
    image = "x".join(map(str, x.shape[1:]))
    kernel = (
        f" {layer.kernel_size[0]}x{layer.kernel_size[1]}, {layer.channels} channels"
        if hasattr(layer, "channels")
        else ""
    )
    return f"{type(layer).__name__}{kernel} on {image}"


def main() -> None:
    """Measure, record, draw."""
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
    main()
