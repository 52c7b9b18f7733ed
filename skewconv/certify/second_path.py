"""The layers of a model evaluated and bounded a second time, for checking certificates only.

Nothing here calls the forward methods, caches, engines or bounds of the layers. It reads their parameters, the filter
and polynomial that define them, and refuses by name what it does not know.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.polynomial import chebyshev
from torch import Tensor, nn

from skewconv.errors import ArgumentError, UnboundedModuleError
from skewconv.nn.protocol import reason_to_doubt

_GRID = 2**20
_MARGIN = 1 + 1e-9
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_LINEAR = ("Linear", "OrthogonalLinear", "NormalizedLinear")


@dataclass(frozen=True)
class Layer:
    """A map in float64 and a bound of its Lipschitz constant; ``matrix`` if it is linear with one."""

    run: Callable[[Tensor], Tensor]
    lipschitz: float
    matrix: Any = None


def walk(model: nn.Module, shape: tuple[int, ...]) -> list[Layer]:
    """The layers in the order they run; the model must be a chain of known layers."""
    layers, x = [], torch.zeros(1, *shape, dtype=torch.float64)
    for name, module in chain(model):
        layers.append(_layer(name, module, tuple(x.shape[1:])))
        x = layers[-1].run(x)
    if not layers:
        raise ArgumentError("the model has no layers")
    return layers


def chain(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """(name, layer) in the order they run, for a model that is known to be a chain."""
    doubt = reason_to_doubt(module)
    if doubt is not None:
        raise UnboundedModuleError(f"certificates of '{path}' ({type(module).__name__}) cannot be checked: {doubt}")
    if kind_of(module) == "LipConvnet":
        links: Any = [(name, getattr(module, name)) for name in ("body", "head")]
    elif kind_of(module) == "Sequential":
        links = module._modules.items()  # a module that is held twice runs twice
    else:
        yield path, module
        return
    for name, child in links:
        yield from chain(child, f"{path}.{name}" if path else name)


def kind_of(module: nn.Module) -> str:
    """The name of a class of PyTorch's or of this package; a class from elsewhere may only be called so."""
    kind = type(module)
    return kind.__name__ if kind.__module__.startswith(("torch.nn.modules.", "skewconv.")) else ""


def _layer(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    kind = kind_of(module)
    if kind in _LINEAR:
        matrix, bias = module.weight.detach(), module.bias
        return Layer(
            lambda x: x @ matrix.T + (0 if bias is None else bias), spectral_norm(matrix.numpy()), matrix.numpy()
        )
    if kind == "Normalize":
        mean, std = (value.reshape(-1, 1, 1) if value.dim() else value for value in (module.mean, module.std))
        least = float(module.std.abs().min())
        return Layer(lambda x: (x - mean) / std, math.inf if least == 0 else 1 / least)
    if kind in ("SOC1d", "SOC2d", "SOC3d"):
        return _skew(module)
    if kind == "MaxMin":
        return Layer(lambda x: torch.cat(_sorted_halves(x, module.dim), module.dim), 1.0)
    if kind == "GroupSort" and module.group_size is not None:
        size = module.group_size
        return Layer(lambda x: x.unflatten(module.dim, (-1, size)).sort(module.dim % x.dim() + 1)[0].view_as(x), 1.0)
    if kind == "Householder":
        return Layer(lambda x: _fold(x, module.theta, module.dim), 1.0)
    if kind == "InvertibleDownsample":
        return Layer(lambda x: _unshuffle(x, module.stride), 1.0)
    if kind == "BCOP2d":
        return _circular(module)
    if kind == "Cayley2d":
        return _per_frequency(module, shape)
    if kind == "AOL2d":
        return _non_expansive_filter(module)
    if kind in ("SLL2d", "CPL2d"):
        return _residual(module)
    if kind == "Flatten":
        return Layer(lambda x: x.flatten(module.start_dim, module.end_dim), 1.0)
    if kind in ("Identity", "ReLU"):
        return Layer(lambda x: x if kind == "Identity" else x.clamp_min(0), 1.0)
    given = f"{type(module).__module__}.{type(module).__qualname__}"
    raise UnboundedModuleError(
        f"certificates of '{name}' ({given}) cannot be checked: the second path does not know it"
    )


def spectral_norm(matrix: np.ndarray) -> float:
    """||A|| from LAPACK's eigenvalues of the smaller Gram matrix, with a margin for their errors."""
    gram = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    return math.sqrt(max(0.0, float(np.linalg.eigvalsh(gram)[-1]))) * _MARGIN


def _skew(module: Any) -> Layer:
    """keep o p(J) o pad o psi, with p(J) by Clenshaw's rule."""
    weight, p, groups, axes = module.weight.detach(), module.polynomial(), module.groups, module.axes
    mirrored = weight.flip(list(range(2, weight.dim()))).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    if not torch.equal(weight, -mirrored):
        raise ArgumentError("a filter is not skew-symmetric")
    if p.series not in _SERIES:
        raise UnboundedModuleError(f"certificates of the series {p.series!r} cannot be checked: it is not known here")
    taps = math.prod(weight.shape[2:])
    # sqrt(taps) times the norm of the filter as a matrix (c_out, c_in taps), or with half the taps on either side.
    norm = max(_filter_norm(block.numpy()) for block in weight.chunk(groups)) * math.sqrt(taps)
    rho, m = p.norm_bound, weight.shape[0]
    circular = module.padding_mode == "circular"
    reach = [d * (k // 2) for d, k in zip(module.dilation, weight.shape[2:], strict=True)]

    def convolution(x: Tensor) -> Tensor:
        pads = [r for n in reversed(reach) for r in (n, n)]
        x = F.pad(x, pads, mode="circular") if circular else F.pad(x, pads)
        return _CONV[axes](x, weight, dilation=module.dilation, groups=groups) / rho

    def run(x: Tensor) -> Tensor:
        x = _unshuffle(x, module.stride)
        blocks = x.unflatten(1, (groups, -1))
        full = x.new_zeros(len(x), groups, m // groups, *x.shape[2:])
        full[:, :, : blocks.shape[2]] = blocks
        y = _SERIES[p.series][0](full.flatten(1, 2), p.coefficients, rho, convolution)
        kept = y.unflatten(1, (groups, -1))[:, :, : module.out_channels // groups].flatten(1, 2)
        return kept if module.bias is None else kept + module.bias.view(-1, *(1,) * axes)

    return Layer(run, _gain(tuple(p.coefficients), rho, p.series, norm))


def _filter_norm(weight: np.ndarray) -> float:
    rows, _, *kernel = weight.shape
    flat = weight.reshape(rows, -1)
    if len(kernel) == 1:
        return spectral_norm(flat)
    halves = np.moveaxis(weight, 2, 1).reshape(rows * kernel[0], -1)
    return min(spectral_norm(flat), spectral_norm(halves))


def _horner(x: Tensor, c: Any, rho: float, z: Callable[[Tensor], Tensor]) -> Tensor:
    """sum_k c_k (rho Z)^k x from the last term to the first."""
    total = c[-1] * x
    for coefficient in c[-2::-1]:
        total = rho * z(total) + coefficient * x
    return total


def _clenshaw(x: Tensor, c: Any, rho: float, z: Callable[[Tensor], Tensor]) -> Tensor:
    """sum_k c_k phi_k(Z) x from the last term to the first: b_k = c_k x + 2 Z b_{k+1} + b_{k+2}."""
    after, now = torch.zeros_like(x), torch.zeros_like(x)
    for coefficient in c[:0:-1]:
        after, now = now, coefficient * x + 2 * z(now) + after
    return c[0] * x + z(now) + after


# For each series: p(J) x from the filter, and p(i t) from a number t; both from the definition of its basis.
_SERIES: dict[str, tuple[Callable[..., Tensor], Callable[[Any, Any, float], Any]]] = {
    "taylor": (_horner, lambda t, c, rho: np.polynomial.polynomial.polyval(t, c)),
    "chebyshev": (_clenshaw, lambda t, c, rho: chebyshev.chebval(t / rho, c)),
}


@lru_cache(maxsize=64)
def _gain(coefficients: tuple[float, ...], rho: float, series: str, norm: float) -> float:
    """max |p(i t)| for |t| <= norm, on a grid t = norm cos(a), with Riesz's margin for |p|^2, of degree 2 n in a."""
    t = max(norm, 1e-300) * np.cos(np.arange(_GRID // 2 + 1) * (2 * np.pi / _GRID))  # the other half is the same
    c = np.asarray(coefficients) * np.resize([1, 1j, -1, -1j], len(coefficients))
    values = _SERIES[series][1](t, c, rho)
    return float(np.abs(values).max()) / math.sqrt(math.cos(2 * len(c) * math.pi / _GRID)) * (1 + 1e-12)


def _sorted_halves(x: Tensor, dim: int) -> list[Tensor]:
    pair = torch.stack(x.chunk(2, dim)).sort(0, descending=True)[0]
    return [pair[0], pair[1]]


def _fold(x: Tensor, angles: Tensor, dim: int) -> Tensor:
    a, b = x.chunk(2, dim)
    for theta in angles:
        half = (theta / 2).view(-1, *(1,) * (x.dim() - 1 - dim % x.dim()))
        inner = a * half.sin() - b * half.cos()
        below = inner < 0
        a, b = (
            torch.where(below, a - 2 * inner * half.sin(), a),
            torch.where(below, b + 2 * inner * half.cos(), b),
        )
    return torch.cat([a, b], dim)


def _unshuffle(x: Tensor, stride: Any) -> Tensor:
    """Channels (c, offsets) of each block of pixels, one axis at a time."""
    steps = stride if isinstance(stride, tuple) else (stride,) * (x.dim() - 2)
    parts = [x]
    for axis, s in enumerate(steps):
        every = [[slice(None)] * (2 + axis) + [slice(offset, None, s)] for offset in range(s)]
        parts = [part[tuple(index)] for part in parts for index in every]
    return torch.stack(parts, 2).flatten(1, 2)


def _circular(module: Any) -> Layer:
    """BCOP: a circular convolution, whose symbol W has W^H W = 1 but for E: ||W||^2 <= 1 + sup ||E||.

    E has taps 1 - k to k - 1: its supremum is at most its maximum on a grid with Riesz's margin.
    """
    weight = module.weight.detach()
    k, n = weight.shape[-1], 8 * weight.shape[-1]
    symbol = np.fft.fft2(weight.numpy(), s=(n, n)).transpose(2, 3, 0, 1)
    tall = symbol if symbol.shape[2] >= symbol.shape[3] else symbol.swapaxes(2, 3).conj()
    defect = tall.swapaxes(2, 3).conj() @ tall - np.eye(tall.shape[3])
    largest = float(np.linalg.norm(defect, axis=(2, 3)).max()) / math.cos(math.pi * (k - 1) / n) ** 2
    pad = ((k - 1) // 2, k // 2)

    def run(x: Tensor) -> Tensor:
        x = F.pad(_unshuffle(x, (module.stride,) * 2), (*pad, *pad), mode="circular")
        y = F.conv2d(x, weight)
        return y if module.bias is None else y + module.bias.view(-1, 1, 1)

    return Layer(run, math.sqrt(1 + largest) * _MARGIN)


def _per_frequency(module: Any, shape: tuple[int, ...]) -> Layer:
    """Cayley: one matrix a frequency, through PyTorch's transforms."""
    matrices = module.frequency_matrices(shape)
    norm = float(np.linalg.norm(matrices.numpy(), 2, axis=(2, 3)).max()) * _MARGIN

    def run(x: Tensor) -> Tensor:
        x = _unshuffle(x, (module.stride,) * 2)
        spectrum = torch.einsum("uvoi,niuv->nouv", matrices, torch.fft.rfft2(x))
        y: Tensor = torch.fft.irfft2(spectrum, s=x.shape[2:])
        return y if module.bias is None else y + module.bias.view(-1, 1, 1)

    return Layer(run, norm)


def _non_expansive_filter(module: Any) -> Layer:
    """AOL: a convolution with the filter as it is, whose norm comes from its symbol."""
    weight = module.weight.detach()

    def run(x: Tensor) -> Tensor:
        y = _convolution(_unshuffle(x, (module.stride,) * 2), weight, module.padding_mode)
        return y if module.bias is None else y + module.bias.view(-1, 1, 1)

    return Layer(run, _symbol_norm(weight.numpy()))


def _residual(module: Any) -> Layer:
    """SLL and CPL: x - 2 W S relu(W^T x + b), with W by PyTorch's transposed convolution.

    With m = ||W S^(1/2)|| its Jacobians I - 2 W S D W^T, 0 <= D <= 1, are between I - 2 m^2 and I: max(1, 2 m^2 - 1).
    """
    weight, scale = module.weight.detach(), module.scale.detach()
    wide = scale.expand(len(weight)).view(-1, 1, 1, 1)
    norm = _symbol_norm((weight * wide.sqrt()).numpy())

    def run(x: Tensor) -> Tensor:
        x = _unshuffle(x, (module.stride,) * 2)
        z = x.new_zeros(len(x), weight.shape[1], *x.shape[2:])
        z[:, : x.shape[1]] = x
        hidden = _convolution(z, weight, module.padding_mode)
        if module.bias is not None:
            hidden = hidden + module.bias.view(-1, 1, 1)
        moved = 2 * wide[:, 0] * hidden.clamp_min(0)
        return (z - _transposed_convolution(moved, weight, module.padding_mode))[:, : module.out_channels]

    return Layer(run, max(1.0, 2 * norm**2 - 1))


def _symbol_norm(weight: np.ndarray) -> float:
    """sup ||W^|| of a filter (c_out, c_in, k, k): its maximum on a grid, from LAPACK, with Riesz's margin."""
    k = weight.shape[-1]
    n = 16 * k
    symbol = np.fft.rfft2(weight, s=(n, n)).transpose(2, 3, 0, 1)
    tall = symbol if symbol.shape[2] >= symbol.shape[3] else symbol.swapaxes(2, 3).conj()
    largest = float(np.linalg.eigvalsh(tall.swapaxes(2, 3).conj() @ tall)[..., -1].max())
    return math.sqrt(max(0.0, largest)) / math.cos(math.pi * (k - 1) / (2 * n)) ** 2 * _MARGIN


def _border(weight: Tensor) -> tuple[int, int]:
    """What "same" padding adds before and after an axis of a square kernel."""
    k = weight.shape[-1]
    return (k - 1) // 2, k // 2


def _convolution(x: Tensor, weight: Tensor, padding_mode: str) -> Tensor:
    border = _border(weight) * 2
    return F.conv2d(F.pad(x, border, mode="circular") if padding_mode == "circular" else F.pad(x, border), weight)


def _transposed_convolution(y: Tensor, weight: Tensor, padding_mode: str) -> Tensor:
    """The adjoint: every output spread over what it was read from, and what fell past the border cut off or folded."""
    (before, after), (h, w) = _border(weight), y.shape[2:]
    wide = F.conv_transpose2d(y, weight)
    if padding_mode != "circular":
        return wide[:, :, before : before + h, before : before + w]
    for axis, n in ((2, h), (3, w)):
        middle = wide.narrow(axis, before, n).clone()
        middle.narrow(axis, n - before, before).add_(wide.narrow(axis, 0, before))
        middle.narrow(axis, 0, after).add_(wide.narrow(axis, before + n, after))
        wide = middle
    return wide
