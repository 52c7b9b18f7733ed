"""Norms of matrices bounded by a factorisation that is verified.

A floating-point Cholesky factor L of c^2 I - A A^T is only a guess. The residual R = c^2 I - A A^T - L L^T is computed
in exact integers; then A A^T = c^2 I - L L^T - R <= (c^2 + ||R||) I, whatever L is.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from flint import arb

from skewconv.ball.array import BallArray, from_floats, largest, power_of_two
from skewconv.ball.exact import Floats, sliced

# A guess of the level that Cholesky in float64 can confirm is this much above the largest eigenvalue, at least.
_SLACK = 1e-11
# A bound that exceeds a target by no more than this meets it.
_MET = 1 + 1e-9
# Roundings of an angle of a few turns, of its cosine or sine, and of a product; in units of 2^-53.
_ROUNDINGS = 80


def spectral_norm_upper_bound(matrix: Floats, target: float | None = None) -> arb:
    """A number that is at least ||A||, and at most ``target`` but for a part in 10^10 where A allows it.

    The largest eigenvalue is looked for only where the target is not met.
    """
    if not matrix.any():
        return arb(0)
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    _, top = math.frexp(float(np.abs(wide).max()))
    wide = np.ascontiguousarray(np.ldexp(wide, -top))
    square, size = wide @ wide.T, len(wide)
    level = None if target is None else math.ldexp(target, -top) ** 2 * (1 + _SLACK * math.sqrt(size))
    factor, slack = None if level is None else _cholesky(square, level), 2.0**-51 * size
    while level is None or factor is None:
        level = float(np.linalg.eigvalsh(square)[-1]) * (1 + slack)
        factor, slack = _cholesky(square, level), slack * 4
    bound = (arb(level) + _residual_norm(level, wide, factor)).sqrt()
    # The entries that underflowed, if any.
    return (bound * power_of_two(top) + power_of_two(top - 1000)).upper()


def _cholesky(square: Floats, level: float) -> Floats | None:
    try:
        return np.asarray(np.linalg.cholesky(level * np.eye(len(square)) - square))
    except np.linalg.LinAlgError:
        return None


def _residual_norm(level: float, wide: Floats, factor: Floats) -> arb:
    """At least ||c^2 I - A A^T - L L^T||: the largest sum of a row, and the error of the balls."""
    wanted = from_floats(level * np.eye(len(factor))[None])
    rest = wanted.plus(gram(wide).scaled(arb(-1))).plus(gram(factor).scaled(arb(-1)))
    # Sums of a few thousand floats, with a margin for their roundings.
    return arb(float(np.abs(rest.floats()[0]).sum(1).max()) * (1 + 1e-6)) + rest.error


def gram(matrix: Floats) -> BallArray:
    return from_floats(matrix[None]).times(sliced(np.ascontiguousarray(matrix.T)), frobenius(matrix))


def frobenius(matrix: Floats) -> arb:
    """At least the norm of Frobenius of a matrix whose squares do not overflow."""
    return arb(float(np.sqrt(np.square(matrix).sum())) * (1 + 1e-6))


def absolute_norm(weight: Floats) -> arb:
    """At least the norm of any convolution with a filter (c_out, c_in, *kernel) whose entries have at most these sizes.

    Scaled by a power of two before anything is squared.
    """
    total = np.abs(weight).sum(tuple(range(2, weight.ndim)))
    _, top = math.frexp(float(total.max(initial=0.0)))
    return frobenius(np.ldexp(total, -top)) * power_of_two(top)


def torus_norm_upper_bound(weight: Floats, torus: tuple[int, ...], target: float | None = None) -> arb:
    """At least ||J|| for a filter of one group on a torus, or on any image that lies in one with room for its taps.

    J is unitarily equivalent to its symbols S(w) = sum_t W_t e^(-i w t) at the frequencies of the torus. Of S(w) and
    S(-w), which are conjugate, one is looked at, as the real matrix [[Re S, -Im S], [Im S, Re S]] of the same norm.
    """
    error = absolute_norm(weight) * (_ROUNDINGS + weight[0, 0].size) * power_of_two(-52)
    return (largest([spectral_norm_upper_bound(symbol, target) for symbol in _symbols(weight, torus)]) + error).upper()


def _symbols(weight: Floats, torus: tuple[int, ...]) -> Iterator[Floats]:
    kernel = weight.shape[2:]
    taps = np.stack(np.meshgrid(*(np.arange(k) - k // 2 for k in kernel), indexing="ij"), -1).reshape(-1, len(kernel))
    flat = weight.reshape(*weight.shape[:2], -1)
    for frequency in np.ndindex(*torus):
        mirrored = tuple(-f % n for f, n in zip(frequency, torus, strict=True))
        if mirrored < frequency:
            continue
        # Reduced before it is divided, so that the angle is of a few turns at most.
        turns = sum((taps[:, j] * f % n) / n for j, (f, n) in enumerate(zip(frequency, torus, strict=True)))
        real, imaginary = flat @ np.cos(2 * np.pi * turns), flat @ -np.sin(2 * np.pi * turns)
        yield np.block([[real, -imaginary], [imaginary, real]])


def skew_norm_upper_bound(weight: Floats, target: float, torus: tuple[int, ...], dilation: Sequence[int]) -> arb:
    """At least ||J|| for the convolution J with a filter of one group: for every image size if that meets the target.

    ||J|| <= sqrt(taps) ||B|| for the filter as a matrix B with some of its axes to the left and the others to the
    right: (c_out, k_1, .. | .., k_d, c_in). The reshapes are tried in turn, and then the torus that holds the image.

    Reference: Singla, Feizi, "Fantastic Four: differentiable bounds on singular values of convolution layers", 2021.
    """
    kernel = weight.shape[2:]
    root, moved = math.sqrt(math.prod(kernel)), np.moveaxis(weight, 1, -1)
    for j in range(max(1, len(kernel))):
        matrix = moved.reshape(len(weight) * math.prod(kernel[:j]), -1)
        if _plausible(matrix, target / root):
            norm = spectral_norm_upper_bound(matrix, target / root) * arb(math.prod(kernel)).sqrt()
            if bool(norm <= target * _MET):
                return norm
    return torus_norm_upper_bound(spread(weight, dilation), torus, target)


def spread(block: Floats, dilation: Sequence[int]) -> Floats:
    """A filter with zeros between its taps."""
    kernel = [step * (k - 1) + 1 for k, step in zip(block.shape[2:], dilation, strict=True)]
    wide = np.zeros((*block.shape[:2], *kernel))
    place: tuple[slice, ...] = (slice(None), slice(None), *(slice(None, None, step) for step in dilation))
    wide[place] = block
    return wide


def _plausible(matrix: Floats, target: float) -> bool:
    """False if a few steps of power iteration show that ||A|| > target: spares a larger computation."""
    vector, size = np.ones(matrix.shape[1]), 0.0
    for _ in range(30):
        vector = matrix.T @ (matrix @ vector)
        size = float(np.linalg.norm(vector))
        if size == 0.0:
            return True
        vector /= size
    return math.sqrt(size) <= target * _MET
