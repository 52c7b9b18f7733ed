"""The audit: what is proven of each layer beside what is measured of it."""

from collections.abc import Callable, Iterable, Mapping
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.certify.certifier import weights_hash
from skewconv.errors import ShapeError
from skewconv.nn import InvertibleDownsample, Normalize, lipschitz_upper_bound, lower
from skewconv.nn.module_tools import float64_copy, named, recording_shapes
from skewconv.nn.primitives import Convolution, Dense, ResidualStep, SkewExponential, Spectral
from skewconv.ops.engines.dense_engine import dense_matrix
from skewconv.ops.norms import NormMethod, norm_estimate, norm_upper_bound
from skewconv.progress import Tick
from skewconv.records import make_record
from skewconv.rigor import MILLIONS_DOWN


def audit(
    model: nn.Module,
    input_shape: Iterable[int],
    *,
    dense_limit: int = 2048,
    steps: int = 60,
    seed: int = 0,
    progress: Tick | None = None,
) -> dict[str, Any]:
    """A record of a model's layers: proven upper bounds of their Lipschitz constants, and measured lower bounds.

    >>> from torch import nn
    >>> record = audit(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (4,), steps=5)
    >>> [row["type"] for row in record["results"]["layers"]]
    ['Linear', 'ReLU', 'Linear']
    >>> whole = record["results"]["network"]
    >>> whole["lipschitz_lower_bound"] <= whole["lipschitz_upper_bound"]
    True

    Args:
        model: made of layers with a known bound, else an UnboundedModuleError names the layer. A copy in eval mode and
            float64 is audited.
        input_shape: of one input.
        dense_limit: largest number of inputs and outputs of affine layers whose singular values are computed.
        steps, seed: of the gradient ascents.
        progress: called after each layer with the layers done, and all; the network as a whole is the last.
    """
    shape = tuple(input_shape)
    plain = float64_copy(model)
    layers, rows = _layers(plain, shape), []
    for name, layer, given in layers:
        rows.append(_row(name, layer, given, dense_limit, steps, seed))
        if progress is not None:
            progress(len(rows), len(layers) + 1)
    upper = _upper_bound("", plain, shape)
    lower = lipschitz_lower_bound(plain, shape, steps=2 * steps, restarts=4, seed=seed, images=True)
    network = {"type": type(model).__name__, "lipschitz_upper_bound": upper, "lipschitz_lower_bound": lower}
    config = {"input_shape": list(shape), "dense_limit": dense_limit, "steps": steps}
    results = {"layers": rows, "network": network, "weights_sha256": weights_hash(model)}
    return make_record("audit", config=config, seed=seed, results=results)


def _layers(model: nn.Module, shape: tuple[int, ...]) -> list[tuple[str, nn.Module, tuple[int, ...]]]:
    """(name, layer, input shape) in the order they run: modules without parts, and those that show themselves."""
    alone = hasattr(model, "lower") and type(lower(model, shape)) is not nn.Sequential
    layers = {
        name or type(model).__name__: module
        for name, module in model.named_modules()
        if (alone if not name else hasattr(module, "lower") or not any(True for _ in module.children()))
    }
    layers = layers or {type(model).__name__: model}
    try:
        with torch.no_grad(), recording_shapes(layers) as met:
            model(torch.zeros(1, *shape, dtype=torch.float64))
    except (RuntimeError, ValueError, IndexError) as error:
        raise ShapeError(f"{type(model).__name__} does not take an input of shape {shape}: {error}") from error
    return [(name, layers[name], calls[0].given) for name, calls in met.items()]


def _row(
    name: str, layer: nn.Module, shape: tuple[int, ...], dense_limit: int, steps: int, seed: int
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "type": type(layer).__name__,
        "input_shape": list(shape),
        "lipschitz_upper_bound": _upper_bound(name, layer, shape),
        "lipschitz_lower_bound": lipschitz_lower_bound(layer, shape, steps=steps, seed=seed),
    }
    lowered = lower(layer, shape)
    if isinstance(lowered, AFFINE):
        with torch.no_grad():
            origin = layer(torch.zeros(1, *shape, dtype=torch.float64))
            if max(origin.numel(), torch.Size(shape).numel()) <= dense_limit:
                values = torch.linalg.svdvals(dense_matrix(lambda x: layer(x) - origin, shape))
                row |= {"smallest_singular_value": float(values[-1]), "largest_singular_value": float(values[0])}
    return row | facts(lowered, shape)


def _upper_bound(name: str, module: nn.Module, shape: tuple[int, ...]) -> float:
    with named(name):
        return lipschitz_upper_bound(module, shape)


#: linear maps with a constant, of which singular values say all
AFFINE = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, Normalize, InvertibleDownsample),
    *(Dense, Convolution, Spectral, SkewExponential),
)
METHODS: tuple[NormMethod, ...] = ("symbol", "gram", "fantastic-four")


@singledispatch
def facts(primitive: nn.Module, shape: tuple[int, ...]) -> dict[str, Any]:
    """What an audit shows of a primitive beside bounds and singular values; one function a type."""
    return {}


@facts.register(nn.Conv1d)
@facts.register(nn.Conv2d)
@facts.register(nn.Conv3d)
def _conv(module: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    return _norms(module, shape[1:], module.padding_mode, module.dilation, module.groups)


@facts.register(Convolution)
@facts.register(ResidualStep)
def _filter(module: Convolution | ResidualStep, shape: tuple[int, ...]) -> dict[str, Any]:
    return _norms(module, module.output_shape[1:], module.padding_mode)


@facts.register
def _skew_exponential(module: SkewExponential, shape: tuple[int, ...]) -> dict[str, Any]:
    p, g = module.polynomial, module.geometry
    polynomial = {"degree": p.degree, "truncation_error": p.truncation_error, "gain": list(p.gain)}
    norms = _norms(module, module.image_size, g.padding_mode, g.dilation, g.groups)
    return {**polynomial, "interval": p.norm_bound, **norms}


def _norms(module: Any, size: Any, padding_mode: str, dilation: Any = 1, groups: int = 1) -> dict[str, Any]:
    """The norm of a filter: proven bounds for every image, and the estimate by power iteration at this size."""
    mode: Any = "circular" if padding_mode == "circular" else "zeros"
    return {
        "norm_upper_bounds": {m: norm_upper_bound(module.weight, m, groups=groups) for m in METHODS},
        "norm_estimate": norm_estimate(module.weight, tuple(size), mode, dilation=dilation, groups=groups),
    }


_TINY = 1e-200


def lipschitz_lower_bound(
    function: Callable[[Tensor], Tensor],
    input_shape: tuple[int, ...],
    *,
    steps: int = 30,
    restarts: int = 8,
    seed: int = 0,
    images: bool = False,
) -> float:
    """The largest ||f(x) - f(y)|| / ||x - y|| found: a measured lower bound of the Lipschitz constant, in float64.

    The difference d = y - x climbs the gradient of ||f(x + d) - f(x)|| at constant length, which is power iteration if
    f is linear; the place x climbs with it. Pairs at distances from 1e-3 to 10 climb together, from uniform images in
    [0, 1] or normal numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    shape, ones = (restarts, *input_shape), (1,) * len(input_shape)
    draw = torch.rand if images else torch.randn
    x = draw(shape, generator=generator, dtype=torch.float64)
    length = torch.logspace(-3, 1, restarts, dtype=torch.float64).view(-1, *ones)
    d = _scaled(torch.randn(shape, generator=generator, dtype=torch.float64), length)
    best = 0.0
    for _ in range(steps):
        x, d = x.detach().requires_grad_(), d.detach().requires_grad_()
        y = x + d
        # A function may work in place, which a point that gradients are taken at cannot bear.
        change = torch.linalg.vector_norm((function(y.clone()) - function(x.clone())).flatten(1), dim=1)
        # The points are rounded, so the distance is that of the points themselves.
        distance = torch.linalg.vector_norm((y - x).detach().flatten(1), dim=1)
        best = max(best, float((change.detach() / distance).max()))
        if not change.requires_grad:
            break
        place, direction = torch.autograd.grad(change.sum(), (x, d))
        flat = direction.flatten(1).norm(dim=1) > _TINY
        d = torch.where(flat.view(-1, *ones), _scaled(direction, length), d)
        x = x + 0.1 * _scaled(place, x.detach().flatten(1).norm(dim=1).view(-1, *ones))
    # A quotient of norms of float64 differences is right to far better than this.
    return best * MILLIONS_DOWN


def _scaled(x: Tensor, length: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(x.flatten(1), dim=1).view_as(length)
    return x * (length / norms.clamp_min(_TINY))


_WIDTH = 80
_HEADS = ("layer", "type", "proven", "measured", "singular", "norm", "degree", "error")
_EXPLAINED = """
proven    an upper bound of the layer's Lipschitz constant, for every input
measured  the largest stretch that a search found: a lower bound of the same
singular  the least and the largest singular value; an orthogonal layer has 1
norm      the least proven bound of the filter's norm, before its exponential
degree    of the polynomial for that exponential, and its proven error
The record has the bounds of the norm by every method."""


def format_audit(record: Mapping[str, Any]) -> str:
    """The record of an audit as text, in at most 80 columns."""
    results = record["results"]
    rows = [_cells(row) for row in (*results["layers"], {**results["network"], "name": "network"})]
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    room = _WIDTH - sum(widths[2:]) - 2 * (len(widths) - 1)
    widths[1] = min(widths[1], max(8, room - widths[0]))
    widths[0] = min(widths[0], max(8, room - widths[1]))
    text = []
    for name, kind, *cells in (_HEADS, *rows):
        # Where they do not fit, names lose their beginning, and types their end.
        first = name if len(name) <= widths[0] else "…" + name[1 - widths[0] :]
        second = kind if len(kind) <= widths[1] else kind[: widths[1] - 1] + "…"
        text.append("  ".join([first.ljust(widths[0]), second.ljust(widths[1]), *map(str.rjust, cells, widths[2:])]))
    rule = "-" * len(text[0])
    return "\n".join([text[0], rule, *text[1:-1], rule, text[-1], _EXPLAINED])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    least, most = (_number(row.get(f"{which}_singular_value"), 4) for which in ("smallest", "largest"))
    return (
        row["name"],
        row["type"],
        _number(row["lipschitz_upper_bound"]),
        _number(row["lipschitz_lower_bound"]),
        least if least == most else f"{least}-{most}",
        _number(min(row.get("norm_upper_bounds", {}).values(), default=None)),
        str(row.get("degree", "")),
        f"{row['truncation_error']:.1e}" if "truncation_error" in row else "",
    )


def _number(value: float | None, digits: int = 5) -> str:
    return "" if value is None else f"{value:.{digits}g}"
