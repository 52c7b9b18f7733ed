"""The inverse of a truncated polynomial, and log |det p(J)|."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.polynomial.polynomial import polyval
from torch import Tensor

from skewconv.errors import NotInvertibleError, ShapeError
from skewconv.ops.engines.dense_engine import dense_jacobian
from skewconv.ops.norms import symbol_error, symbols
from skewconv.ops.polynomials import Polynomial
from skewconv.rigor import MILLIONS_UP, UNIT_ROUNDOFF, hermitian_eigenvalues, in_double

if TYPE_CHECKING:
    from skewconv.nn.soc.skew_conv import SkewConv

# Each takes as long as a forward pass and a backward one.
_MOST_ITERATIONS = 100
# Eigenvalues of matrices with this many entries cubed take about a second.
_CHEAP_OPERATIONS = 2**30


def iterated_inverse(layer: "SkewConv", y: Tensor) -> Tensor:
    """x with S x = y, for the linear map S of an injective layer in training mode and a y in its range.

    With the gain of S in [l, h] and t = 2 / (l^2 + h^2), the eigenvalues of I - t S^H S are at most
    q = (h^2 - l^2) / (h^2 + l^2) in modulus. So x_0 = t S^H y errs by q ||x|| at most, and every step
    x + t S^H (y - S x) multiplies the error by q (Richardson's iteration).
    """
    tol = max(layer.polynomial().truncation_error, torch.finfo(y.dtype).eps)
    low, high = layer.gain_bounds()
    rate = (high**2 - low**2) / (high**2 + low**2) if low > 0 and math.isfinite(high) else 1.0
    # The fewest with q^(steps + 1) <= tol.
    steps = math.log(tol) / math.log(rate) - 1 if 0 < rate < 1 else rate * math.inf if rate else 0.0
    if steps > _MOST_ITERATIONS:
        raise NotInvertibleError(
            f"in training this {type(layer).__name__} has a gain in [{low:.3g}, {high:.3g}], too far from one for an "
            f"inverse in {_MOST_ITERATIONS} steps; build it with accurate=True, or a smaller train_tol, or call .eval()"
        )
    factor = 2 / (low**2 + high**2)
    x = factor * layer.adjoint(y)
    for _ in range(math.ceil(steps)):
        x = x + factor * layer.adjoint(y - layer.linear(x))
    return x


class LogAbsDet(NamedTuple):
    """|log |det S| - value| <= error, for the map in exact arithmetic with the weights as stored."""

    value: float
    error: float


def log_abs_det(layer: "SkewConv", input_shape: tuple[int, ...]) -> LogAbsDet:
    """See :meth:`skewconv.nn.soc.skew_conv.SkewConv.log_abs_det`."""
    if input_shape[0] != layer.in_channels:
        raise ShapeError(f"input_shape must begin with {layer.in_channels} channels, got {input_shape}")
    if layer.read_channels != layer.kept_channels:
        raise NotInvertibleError(
            f"{type(layer).__name__} maps {layer.read_channels} channels (stride included) to {layer.kept_channels}: "
            "only a map between equally many entries has a determinant; use out_channels = in_channels * prod(stride)"
        )
    size, entries = layer.size_met(input_shape), math.prod(input_shape)
    low, high = layer.gain_bounds()
    found = []
    if low > 0:
        # The middle of an interval, whose ends and half width are rounded outward.
        least, most = entries * math.log(low), entries * math.log(high)
        found.append(LogAbsDet((least + most) / 2, (most - least) / 2 + 16 * UNIT_ROUNDOFF * (abs(least) + abs(most))))
    channels, pixels = layer.channels // layer.groups, math.prod(size)
    circular = layer.padding_mode == "circular"
    cost = pixels * channels**3 if circular else (pixels * channels) ** 3
    if layer.groups * cost <= _CHEAP_OPERATIONS:
        with torch.no_grad():
            weight = in_double(layer._filter().detach())
        blocks = weight.unflatten(0, (layer.groups, channels))
        if circular:
            matrices: Iterable[Tensor] = symbols(blocks.to(torch.complex128), size, layer.dilation)
            slack = symbol_error(blocks)
        else:
            matrices = (dense_jacobian(block, size, "zeros", layer.dilation)[None] for block in blocks)
            slack = 0.0
        found += _by_spectrum(matrices, slack, layer.polynomial(training=layer.training))
    if not found:
        raise NotInvertibleError(
            f"the gain of this {type(layer).__name__} may be as low as zero, so that log |det| has no bound; build it "
            "with accurate=True, or a smaller tolerance, or call .eval()"
        )
    return min(found, key=lambda candidate: candidate.error)


def _by_spectrum(skew: Iterable[Tensor], slack: float, p: Polynomial) -> list[LogAbsDet]:
    """The sum over batches of skew-Hermitian matrices (b, n, n), each known to ``slack``; nothing if one is singular.

    An eigenvalue that is off by d moves |p| by at most d sup |p'|, and log |p| by -log(1 - that / |p|).
    """
    powers = p.in_powers()
    # The even powers have the real part of p(i t), the odd ones the imaginary part.
    signed = [float(c) * (-1) ** (k // 2) for k, c in enumerate(powers)]
    total, error = [], []
    for batch in skew:
        eigenvalues, distance = hermitian_eigenvalues(-1j * batch.to(torch.complex128))
        radius = max(float(eigenvalues.abs().max()), p.norm_bound) * (1 + 2**-20) + distance + slack
        sizes = [float(abs(c)) * radius**k for k, c in enumerate(powers)]
        slope = sum(k * size for k, size in enumerate(sizes)) / radius if radius else 0.0
        # Horner's rule on each of the two parts, and what the coefficients and the modulus were rounded by.
        rounding = 8 * (len(powers) + 4) * UNIT_ROUNDOFF * sum(sizes)
        angles = eigenvalues.flatten().numpy()
        real, odd = (polyval(angles * angles, part) for part in (signed[::2], signed[1::2] or [0.0]))
        moduli = np.hypot(real, angles * odd)
        lost = ((distance + slack) * slope + rounding) * MILLIONS_UP / moduli
        if not (lost < 0.5).all():
            return []
        logs = np.log(moduli)
        total.append(math.fsum(logs))
        error.append(math.fsum(-np.log1p(-lost)) + 4 * UNIT_ROUNDOFF * math.fsum(np.abs(logs)))
    return [LogAbsDet(math.fsum(total), math.fsum(error) * MILLIONS_UP + 4 * UNIT_ROUNDOFF * sum(map(abs, total)))]
