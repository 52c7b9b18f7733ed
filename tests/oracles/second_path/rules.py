"""One rule for each kind of layer, found by the name of its class."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.errors import ArgumentError, UnboundedModuleError
from tests.oracles.second_path.chain import chain, kind_of
from tests.oracles.second_path.convolutions import bcop, cayley, convolution
from tests.oracles.second_path.frozen import dense, frozen_convolution, spectral
from tests.oracles.second_path.layer import Layer
from tests.oracles.second_path.neighbours import aol, residual
from tests.oracles.second_path.norms import spectral_norm
from tests.oracles.second_path.pixels import folded, shuffled, sorted_halves, unshuffled
from tests.oracles.second_path.pools import adaptive, average, maximum
from tests.oracles.second_path.skew import frozen_series, skew

Shape: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[str, Any, Shape], Layer]


def walk(model: nn.Module, shape: Shape, path: str = "") -> list[Layer]:
    """The layers in the order they run; the model must be a chain of known layers, in float64 and eval mode."""
    layers, x = [], torch.zeros(1, *shape, dtype=torch.float64)
    for name, module in chain(model, path):
        shape = tuple(x.shape[1:])
        found = [_layer(name, module, shape)]
        layers += found
        x = _run(found, x)
    if not layers:
        raise ArgumentError("the model has no layers")
    return layers


def _layer(name: str, module: Any, shape: Shape) -> Layer:
    kind = kind_of(module)
    if kind in ("MaxMin", "GroupSort", "Householder", "Normalize") and module.dim % (len(shape) + 1) == 0:
        raise UnboundedModuleError(f"certificates of '{name}' cannot be checked: dim={module.dim} mixes a batch")
    if kind in _RULES:
        return _RULES[kind](name, module, shape)
    given = f"{type(module).__module__}.{type(module).__qualname__}"
    raise UnboundedModuleError(
        f"certificates of '{name}' ({given}) cannot be checked: the second path does not know it"
    )


def _linear(name: str, module: Any, shape: Shape) -> Layer:
    matrix, bias = module.weight.detach(), module.bias
    return Layer(lambda x: x @ matrix.T + (0 if bias is None else bias), spectral_norm(matrix.numpy()), matrix.numpy())


def _normalize(name: str, module: Any, shape: Shape) -> Layer:
    mean, std = (_on_axis(value, module.dim % (len(shape) + 1), shape) for value in (module.mean, module.std))
    least = float(module.std.abs().min())
    return Layer(lambda x: (x - mean) / std, math.inf if least == 0 else 1 / least)


def _on_axis(value: Tensor, axis: int, shape: Shape) -> Tensor:
    return value.reshape(-1, *(1,) * (len(shape) - axis)) if value.dim() else value


def _batch_norm(name: str, module: Any, shape: Shape) -> Layer:
    if module.running_var is None:
        raise UnboundedModuleError(f"certificates of '{name}' cannot be checked: it has no running statistics")
    factor = 1 / (module.running_var + module.eps).sqrt()
    factor = factor if module.weight is None else factor * module.weight.detach()
    shift = module.running_mean.new_zeros(()) if module.bias is None else module.bias.detach()
    factor, mean, shift = (_on_axis(value, 1, shape) for value in (factor, module.running_mean, shift))
    return Layer(lambda x: (x - mean) * factor + shift, float(factor.abs().max()) * (1 + 1e-12))


def _sorted(name: str, module: Any, shape: Shape) -> Layer:
    size = module.group_size

    def run(x: Tensor) -> Tensor:
        axis = module.dim % x.dim()
        groups = x.unflatten(axis, (-1, x.shape[axis] if size is None else size))
        return groups.sort(axis + 1)[0].view_as(x)

    return Layer(run, 1.0)


def _residual_block(name: str, module: Any, shape: Shape) -> Layer:
    """s(a(x)) + r(a(x)), or x + r(a(x)): norms of chains multiply, and those of sums add."""
    active = walk(module.activation, shape, f"{name}.activation")
    after = tuple(_run(active, torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])
    residual = walk(module.residual, after, f"{name}.residual")
    shortcut = None if module.shortcut is None else walk(module.shortcut, after, f"{name}.shortcut")

    zeros = torch.zeros(1, *after, dtype=torch.float64)
    made = tuple(_run(residual, zeros).shape[1:])
    beside = shape if shortcut is None else tuple(_run(shortcut, zeros).shape[1:])
    if made != beside:
        raise UnboundedModuleError(f"certificates of '{name}' cannot be checked: it adds {made} and {beside}")

    def run(x: Tensor) -> Tensor:
        y = _run(active, x)
        return _run(residual, y) + (x if shortcut is None else _run(shortcut, y))

    a, r = (math.prod(layer.lipschitz for layer in layers) for layers in (active, residual))
    s = 1.0 if shortcut is None else a * math.prod(layer.lipschitz for layer in shortcut)
    return Layer(run, (s + a * r) * (1 + 1e-12))


def _run(layers: list[Layer], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer.run(x)
    return x


def _shuffle_channels(x: Tensor, groups: int) -> Tensor:
    return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


def _exact(run: Callable[[Any, Tensor], Tensor]) -> Rule:
    """A rule for a layer that stretches nothing."""
    return lambda name, module, shape: Layer(lambda x: run(module, x), 1.0)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("Linear", "OrthogonalLinear", "NormalizedLinear"), _linear),
    "Normalize": _normalize,
    **dict.fromkeys(("SOC1d", "SOC2d", "SOC3d", "SOCTranspose1d", "SOCTranspose2d", "SOCTranspose3d"), skew),
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d"), convolution),
    "BCOP2d": bcop,
    "AOL2d": aol,
    **dict.fromkeys(("SLL2d", "CPL2d", "ResidualStep"), residual),
    "Cayley2d": cayley,
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), _batch_norm),
    **dict.fromkeys(("AvgPool1d", "AvgPool2d", "AvgPool3d"), average),
    **dict.fromkeys(("AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"), adaptive),
    **dict.fromkeys(("MaxPool1d", "MaxPool2d", "MaxPool3d"), maximum),
    "Dense": dense,
    "Convolution": frozen_convolution,
    "Spectral": spectral,
    "SkewExponential": frozen_series,
    **dict.fromkeys(("ResidualBlock", "ResidualSum"), _residual_block),
    "MaxMin": _exact(lambda module, x: torch.cat(sorted_halves(x, module.dim), module.dim)),
    "GroupSort": _sorted,
    "Householder": _exact(lambda module, x: folded(x, module.theta, module.dim)),
    "InvertibleDownsample": _exact(lambda module, x: unshuffled(x, module.stride)),
    "PixelUnshuffle": _exact(lambda module, x: unshuffled(x, module.downscale_factor)),
    "PixelShuffle": _exact(lambda module, x: shuffled(x, (module.upscale_factor,) * 2)),
    "ChannelShuffle": _exact(lambda module, x: _shuffle_channels(x, module.groups)),
    "Flatten": _exact(lambda module, x: x.flatten(module.start_dim, module.end_dim)),
    "Unflatten": _exact(lambda module, x: x.unflatten(module.dim, module.unflattened_size)),
    **dict.fromkeys(("Identity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d"), _exact(lambda module, x: x)),
    **dict.fromkeys(("ZeroPad1d", "ZeroPad2d", "ZeroPad3d"), _exact(lambda module, x: F.pad(x, module.padding))),
    "ReLU": _exact(lambda module, x: x.clamp_min(0)),
    "ReLU6": _exact(lambda module, x: x.clamp(0, 6)),
    "Hardtanh": _exact(lambda module, x: x.clamp(module.min_val, module.max_val)),
}
