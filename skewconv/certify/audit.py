"""The audit: what is proven of each layer beside what is measured of it."""

from collections.abc import Iterable
from functools import singledispatch
from typing import Any

import torch
from torch import nn

from skewconv.certify.hashes import weights_hash
from skewconv.certify.measure import lipschitz_lower_bound, singular_values
from skewconv.errors import ShapeError, UnboundedModuleError
from skewconv.nn import InvertibleDownsample, Normalize, lipschitz_upper_bound, lower
from skewconv.nn.module_tools import float64_copy, recording_shapes
from skewconv.nn.primitives import Convolution, Dense, ResidualStep, SkewExponential, Spectral
from skewconv.ops.norms import NormMethod, norm_estimate, norm_upper_bound
from skewconv.progress import Tick
from skewconv.records import make_record


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
        model: any module made of layers with a known bound; it is copied, and left as it is. Judged in eval mode,
            float64.
        input_shape: of one input.
        dense_limit: singular values are computed for affine layers with at most so many inputs and outputs.
        steps: of the gradient ascents.
        seed: of their starting points.
        progress: called after each layer with the layers done, and all; the network as a whole is the last.

    Raises:
        UnboundedModuleError: a layer, named, has no known bound.
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
    upper = _upper_bound(name, layer, shape)
    row: dict[str, Any] = {
        "name": name,
        "type": type(layer).__name__,
        "input_shape": list(shape),
        "lipschitz_upper_bound": upper,
        "lipschitz_lower_bound": lipschitz_lower_bound(layer, shape, steps=steps, seed=seed),
    }
    lowered = lower(layer, shape)
    if is_affine(lowered):
        with torch.no_grad():
            outputs = layer(torch.zeros(1, *shape, dtype=torch.float64)).numel()
        if max(outputs, torch.Size(shape).numel()) <= dense_limit:
            row["smallest_singular_value"], row["largest_singular_value"] = singular_values(layer, shape)
    return row | facts(lowered, shape)


def _upper_bound(name: str, module: nn.Module, shape: tuple[int, ...]) -> float:
    try:
        return lipschitz_upper_bound(module, shape)
    except UnboundedModuleError as error:
        raise UnboundedModuleError(str(error).replace("the model itself", f"'{name}'")) from None


# A linear map and a constant: its singular values say all.
_AFFINE = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, Normalize, InvertibleDownsample),
    *(Dense, Convolution, Spectral, SkewExponential),
)
METHODS: tuple[NormMethod, ...] = ("symbol", "gram", "fantastic-four")


def is_affine(primitive: nn.Module) -> bool:
    """True for linear maps with a constant."""
    return isinstance(primitive, _AFFINE)


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
    """The polynomial, and the norm of the filter at the size that the exponential sees."""
    p, g = module.polynomial, module.geometry
    polynomial = {"degree": p.degree, "truncation_error": p.truncation_error, "gain": list(p.gain)}
    return (
        polynomial
        | {"interval": p.norm_bound}
        | _norms(module, module.image_size, g.padding_mode, g.dilation, g.groups)
    )


def _norms(module: Any, size: Any, padding_mode: str, dilation: Any = 1, groups: int = 1) -> dict[str, Any]:
    """The norm of a filter: proven bounds for every image, and the estimate by power iteration at this size."""
    mode: Any = "circular" if padding_mode == "circular" else "zeros"
    return {
        "norm_upper_bounds": {m: norm_upper_bound(module.weight, m, groups=groups) for m in METHODS},
        "norm_estimate": norm_estimate(module.weight, tuple(size), mode, dilation=dilation, groups=groups),
    }
