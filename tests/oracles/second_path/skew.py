"""The polynomial of a skew convolution, and its gain, from the definition of its basis."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from skewconv.errors import ArgumentError, UnboundedModuleError
from tests.oracles.second_path.layer import CONVOLUTIONS, Layer
from tests.oracles.second_path.norms import MARGIN, Array, grid_norm, spectral_norm
from tests.oracles.second_path.pixels import bordered, shuffled, unshuffled

_GRID = 2**20


def skew(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """keep o p(J) o pad o psi, with p(J) from its last term; psi^T o keep o p(-J) o pad for the adjoint layers."""
    kept = module.read_channels if module.transposed else module.kept_channels
    geometry = Geometry(module.padding_mode, tuple(module.dilation), module.groups, tuple(module.stride))
    p = module.polynomial()
    return exponential(name, shape, module.weight, p, geometry, kept, module.bias, module.transposed)


def frozen_series(name: str, module: Any, shape: tuple[int, ...]) -> Layer:
    """The same from what a frozen layer stores."""
    kept = module.read_channels if module.upsamples else module.kept_channels
    given = module.geometry
    geometry = Geometry(given.padding_mode, tuple(given.dilation), given.groups, tuple(module.stride))
    return exponential(name, shape, module.weight, module.polynomial, geometry, kept, module.bias, module.upsamples)


class Geometry(NamedTuple):
    """How a filter meets an image, and the stride of psi."""

    padding_mode: str
    dilation: tuple[int, ...]
    groups: int
    stride: tuple[int, ...]

    def image_size(self, shape: tuple[int, ...], adjoint: bool) -> tuple[int, ...]:
        """Of what the polynomial is applied to: after psi, or before its adjoint."""
        return tuple(shape[1:]) if adjoint else tuple(n // s for n, s in zip(shape[1:], self.stride, strict=True))


def exponential(
    name: str,
    shape: tuple[int, ...],
    weight: Tensor,
    p: Any,
    geometry: Geometry,
    kept: int,
    bias: Tensor | None,
    adjoint: bool,
) -> Layer:
    """The layer with the filter ``weight`` (m, m / groups, *kernel) and the polynomial p, of which ``kept`` stay."""
    weight, groups, axes = weight.detach(), geometry.groups, weight.dim() - 2
    mirrored = weight.flip(list(range(2, weight.dim()))).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    if not torch.equal(weight, -mirrored):
        raise ArgumentError(f"the filter of '{name}' is not skew-symmetric")
    if p.series not in _SERIES:
        raise UnboundedModuleError(f"certificates of the series {p.series!r} cannot be checked: it is not known here")
    # sqrt(taps) times the norm of the filter as a matrix (c_out, c_in taps), or with half the taps on either side.
    norm = max(filter_norm(block.numpy()) for block in weight.chunk(groups)) * math.sqrt(math.prod(weight.shape[2:]))
    rho, m = p.norm_bound, weight.shape[0]
    circular = geometry.padding_mode == "circular"
    reach = [d * (k // 2) for d, k in zip(geometry.dilation, weight.shape[2:], strict=True)]
    if norm > rho * MARGIN:
        # On a torus as large as the image, and as far as a tap reaches beyond it if zeros surround it: what leaves the
        # image on one side does not come back on the other.
        size = geometry.image_size(shape, adjoint)
        torus = tuple(n if circular else n + r for n, r in zip(size, reach, strict=True))
        norm = min(norm, max(grid_norm(block.numpy(), torus, geometry.dilation) for block in weight.chunk(groups)))

    def convolution(x: Tensor) -> Tensor:
        pads = [r for n in reversed(reach) for r in (n, n)]
        x = bordered(x, pads, circular=circular)
        return CONVOLUTIONS[axes](x, weight, dilation=geometry.dilation, groups=groups) / (-rho if adjoint else rho)

    def run(x: Tensor) -> Tensor:
        x = x if adjoint else unshuffled(x, geometry.stride)
        blocks = x.unflatten(1, (groups, -1))
        full = x.new_zeros(len(x), groups, m // groups, *x.shape[2:])
        full[:, :, : blocks.shape[2]] = blocks
        y = _SERIES[p.series][0](full.flatten(1, 2), p.coefficients, rho, convolution)
        y = y.unflatten(1, (groups, -1))[:, :, : kept // groups].flatten(1, 2)
        y = shuffled(y, geometry.stride) if adjoint else y
        return y if bias is None else y + bias.view(-1, *(1,) * axes)

    return Layer(run, _gain(tuple(p.coefficients), rho, p.series, norm))


def filter_norm(weight: Array) -> float:
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
