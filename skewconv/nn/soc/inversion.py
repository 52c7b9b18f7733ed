"""The inverse of a truncated polynomial: the adjoint, iterated until a proven factor has made its error small."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from skewconv.errors import NotInvertibleError

if TYPE_CHECKING:
    from skewconv.nn.soc.skew_conv import SkewConv

# Each takes as long as a forward pass and a backward one.
_MOST_ITERATIONS = 100


def iterated_inverse(layer: "SkewConv", y: Tensor) -> Tensor:
    """x with S x = y, for the linear map S of an injective layer in training mode and a y in its range.

    With the gain of S in [l, h] and t = 2 / (l^2 + h^2), the eigenvalues of I - t S^H S are at most
    q = (h^2 - l^2) / (h^2 + l^2) in modulus. So x_0 = t S^H y errs by q ||x|| at most, and every step
    x + t S^H (y - S x) multiplies the error by q (Richardson's iteration).
    """
    low, high = layer.gain_bounds()
    tol = max(layer.polynomial().truncation_error, torch.finfo(y.dtype).eps)
    steps = _steps(low, high, tol)
    if steps is None:
        raise NotInvertibleError(
            f"in training this {type(layer).__name__} has a gain in [{low:.3g}, {high:.3g}], too far from one for an "
            f"inverse in {_MOST_ITERATIONS} steps; build it with accurate=True, or a smaller train_tol, or call .eval()"
        )
    factor = 2 / (low**2 + high**2)
    x = factor * layer.adjoint(y)
    for _ in range(steps):
        x = x + factor * layer.adjoint(y - layer.linear(x))
    return x


def _steps(low: float, high: float, tol: float) -> int | None:
    """The least k with q^(k + 1) <= tol; None where that is too many, or the map may be singular.

    >>> _steps(1.0, 1.0, 1e-6), _steps(0.9, 1.1, 1e-6), _steps(0.0, 1.0, 1e-6)
    (0, 8, None)
    """
    if not (low > 0 and math.isfinite(high)):
        return None
    rate = (high**2 - low**2) / (high**2 + low**2)
    steps = max(0, math.ceil(math.log(tol) / math.log(rate)) - 1) if rate > 0 else 0
    return steps if steps <= _MOST_ITERATIONS else None
