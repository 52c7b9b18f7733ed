"""The inverse of a truncated polynomial: the adjoint, iterated until a proven factor has made its error small."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from skewconv.errors import NotInvertibleError
from skewconv.nn.soc.accuracy import MOST_ITERATIONS, Iteration, iteration_for
from skewconv.ops.torch_modes import tracing

if TYPE_CHECKING:
    from skewconv.nn.soc.skew_conv import SkewConv


def iterated_inverse(layer: "SkewConv", y: Tensor) -> Tensor:
    """x with S x = y, for the linear map S of an injective layer in training mode and a y in its range.

    With the gain of S in [l, h] and t = 2 / (l^2 + h^2), the eigenvalues of I - t S^H S are at most
    q = (h^2 - l^2) / (h^2 + l^2) in modulus. So x_0 = t S^H y errs by q ||x|| at most, and every step
    x + t S^H (y - S x) multiplies the error by q (Richardson's iteration).
    """
    tol = max(layer.polynomial().truncation_error, torch.finfo(y.dtype).eps)
    if tracing():
        # Compilers and transforms hide the values of the filter, so that its norm is taken for what it was scaled to.
        iteration: Iteration | None = layer.train_accuracy.iteration(layer.polynomial(training=True).norm_bound, tol)
    else:
        iteration = iteration_for(*layer.gain_bounds(), tol)
    if iteration is None:
        low, high = layer.gain_bounds()
        raise NotInvertibleError(
            f"in training this {type(layer).__name__} has a gain in [{low:.3g}, {high:.3g}], too far from one for an "
            f"inverse in {MOST_ITERATIONS} steps; build it with accurate=True, or a smaller train_tol, or call .eval()"
        )
    x = iteration.factor * layer.adjoint(y)
    for _ in range(iteration.steps):
        x = x + iteration.factor * layer.adjoint(y - layer.linear(x))
    return x
