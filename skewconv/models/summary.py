"""A table of a model: each layer's output, parameters, operations and proven Lipschitz bound."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from skewconv.errors import UnboundedModuleError
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.module_tools import MetShapes, evaluating, recording_shapes, zeros_for


@dataclass(frozen=True)
class Row:
    """One layer. ``operations`` are the multiply-adds of a run on one input; ``bound`` is None where none is known."""

    name: str
    kind: str
    output_shape: tuple[int, ...]
    parameters: int
    operations: int
    bound: float | None


@dataclass(frozen=True)
class Summary:
    """The layers in the order they run, and the whole model as the last row."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        header = ("layer", "type", "output", "parameters", "multiply-adds", "Lipschitz <=")
        lines = []
        for row in self.rows:
            shape = " x ".join(map(str, row.output_shape))
            bound = "unknown" if row.bound is None else f"{row.bound:.7g}"
            lines.append((row.name, row.kind, shape, f"{row.parameters:,}", f"{row.operations:,}", bound))
        return format_table(header, lines[:-1], lines[-1], left=3)


def summary(model: nn.Module, input_shape: tuple[int, ...]) -> Summary:
    """What a model is made of.

    >>> from skewconv.models import LipConvnet
    >>> print(summary(LipConvnet(5, in_channels=1, input_size=8, width=4), (1, 8, 8)))
    layer   type              output      parameters  multiply-adds  Lipschitz <=
    ----...
    body.0  Normalize         1 x 8 x 8            0              0      3.988831
    body.1  SOC2d             8 x 4 x 4          292        ...             1
    ...
    head    OrthogonalLinear  10                 506            320 ...
    ----...
    total   LipConvnet        10               7,454        ...      3.988831

    Args:
        model: any module; modules that state a bound, or hold no others, are shown as one layer.
        input_shape: the shape of one input, without the batch axis.
    """
    leaves, x = dict(_layers(model)), zeros_for(model, tuple(input_shape))
    with evaluating(model), torch.no_grad(), recording_shapes({**leaves, "": model}) as met:
        model(x)  # what is computed once for all inputs is not counted
        counter = FlopCounterMode(display=False)
        with counter:
            model(x)
    counts = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    root, (whole, *_) = type(model).__name__, met.pop("")

    def row(name: str, module: nn.Module, shapes: MetShapes, counted: str) -> Row:
        try:
            bound = lipschitz_upper_bound(module, shapes.given)
        except UnboundedModuleError:
            bound = None
        parameters = sum(p.numel() for p in module.parameters())
        return Row(name, type(module).__name__, shapes.made, parameters, counts.get(counted, 0) // 2, bound)

    rows = [row(name, leaves[name], calls[0], f"{root}.{name}") for name, calls in met.items()]
    return Summary((*rows, row("total", model, whole, "Global")))


def _layers(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules that state a bound or hold no others, from the outside in."""
    for name, child in model.named_children():
        if hasattr(child, "lower") or not any(True for _ in child.children()):
            yield prefix + name, child
        else:
            yield from _layers(child, f"{prefix}{name}.")


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], total: Sequence[str], left: int) -> str:
    """The rows between two rules, under a header and above a total; the first ``left`` columns to the left.

    >>> print(format_table(("layer", "size"), [("a", "10"), ("b", "2")], ("both", "12"), left=1))
    layer  size
    -----------
    a        10
    b         2
    -----------
    both     12
    """
    lines = [header, *rows, total]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
    rule = "-" * len(text[0])
    return "\n".join([text[0], rule, *text[1:-1], rule, text[-1]])
