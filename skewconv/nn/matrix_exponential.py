"""A few columns of the exponential of a skew-symmetric matrix."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skewconv.ops.recurrence import ChannelWidths, MatrixProducts, Recurrence, apply_recurrence
from skewconv.ops.torch_modes import batched, compiling, ordinary_dispatch

# The Chebyshev series goes on beyond its interval: the estimate may be a few tenths short before its error shows.
_STEPS, _SAFETY = 8, 1.25
_LARGEST_RADIUS = 1000.0
# Matrices of norm 2^10 are halved to 1/2, where eight terms of the exponential err by less than 1e-8 of it.
_HALVINGS, _TERMS = 11, 8


def exponential_columns(
    skew: Tensor, count: int, *, inverse: bool = False, may_wait: bool = True, radius: float | None = None
) -> Tensor:
    """The first columns of exp(A), or of exp(-A), for a skew-symmetric A: (m, m) -> (m, count).

    A few columns come from the Chebyshev series exp(A) x = J_0(r) x + 2 sum_k J_k(r) phi_k on [-i r, i r]: products of
    A with these columns only, where the derivative of a full exponential takes that of a matrix twice as large.

    Args:
        skew: A.
        count: how many columns.
        inverse: of exp(-A).
        may_wait: whether the host may look at the norm of A, which decides how many terms there are. If not, an
            accelerator need not be waited for: the products are always the same, for norms up to 2^10, to a few digits
            less than those of the dtype.
        radius: r, where it is known already.
    """
    if not may_wait:
        return _columns_by_squaring(-skew if inverse else skew, count)
    if compiling():
        made: Tensor = _opaque_columns(skew, count, inverse)[0]
        return made
    radius = _radius(skew) if radius is None else radius
    if not (4 * count <= len(skew) and 0 < radius <= _LARGEST_RADIUS):
        full: Tensor = torch.linalg.matrix_exp(-skew if inverse else skew)
        return full[:, :count]
    # scipy takes longer to import than all of this library, and training is the first to come here.
    from scipy.special import jv

    coefficients = jv(np.arange(int(1.5 * radius) + 50), radius)
    tails = np.abs(coefficients)[::-1].cumsum()[::-1]
    degree = max(1, int((tails > torch.finfo(skew.dtype).eps / 8).sum()))
    # u_k = 2 phi_k, so that u_{k+1} = (2 / r) A u_k + u_{k-1} after u_0 = x.
    steps = Recurrence(tuple(map(float, coefficients[: degree + 1])), (2.0, *(1.0,) * (degree - 2))[: degree - 1])
    start = torch.eye(count, dtype=skew.dtype, device=skew.device)
    products = MatrixProducts(ChannelWidths(1, len(skew), count, len(skew)))
    columns = apply_recurrence(
        start[None], (2 / radius) * skew[None], steps.adjoint() if inverse else steps, products, recompute=False
    )
    return columns[0].T


def _columns_by_squaring(skew: Tensor, count: int) -> Tensor:
    """exp(A) = exp(A / 2^n)^(2^n), by squares of E = exp - 1, whose digits the one would hide.

    That is (1 + E)^2 = 1 + (2 E + E^2). The terms of E are taken four at a time:
    E = (a + a^2 / 2! + .. + a^4 / 4!) + a^4 (a / 5! + .. + a^4 / 8!).
    """
    a = skew / 2**_HALVINGS
    square = a @ a
    powers = (a, square, square @ a, square @ square)
    low, high = (
        sum(power / math.factorial(k) for k, power in enumerate(powers, first)) for first in range(1, _TERMS, 4)
    )
    result = low + powers[-1] @ high
    for _ in range(_HALVINGS - 1):
        result = 2 * result + result @ result
    columns = result[:, :count]
    return torch.eye(len(skew), count, dtype=skew.dtype, device=skew.device) + 2 * columns + result @ columns


def _radius(skew: Tensor) -> float:
    """Of an interval that holds the spectrum, it is hoped; infinite where the norm is not known.

    That is so for matrices that torch.func.vmap has stacked, and for those that an exported program will meet.
    """
    if batched(skew) or torch.compiler.is_compiling():
        return math.inf
    return _SAFETY * _norm_estimate(skew.detach())


def _norm_estimate(skew: Tensor) -> float:
    """A lower bound on ||A|| by power steps from a few fixed vectors, rarely below three quarters of it."""
    vectors = _start(len(skew), skew.dtype, skew.device)
    for _ in range(_STEPS):
        vectors = skew @ (vectors / torch.linalg.vector_norm(vectors, dim=0).clamp_min(torch.finfo(skew.dtype).tiny))
    return float(torch.linalg.vector_norm(vectors, dim=0).max())


@lru_cache(maxsize=16)
def _start(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.randn(size, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device, dtype)


# How many products there are depends on the norm of A, which a compiler cannot know: it would stop at that number, and
# build a program anew for each value of it, at every step of training. So it does not look inside.


@torch.library.custom_op(
    "skewconv::exponential_columns",
    mutates_args=(),
    schema="(Tensor skew, SymInt count, bool inverse) -> (Tensor, Tensor)",
)
def _opaque_columns(skew: Tensor, count: int, inverse: bool) -> tuple[Tensor, Tensor]:
    """The columns, and the radius of the interval, which the backward pass need not look for again."""
    with ordinary_dispatch(), torch.no_grad():
        radius = _radius(skew)
        columns = exponential_columns(skew, count, inverse=inverse, radius=radius)
        return columns.contiguous(), torch.tensor(radius, dtype=torch.float64)


@torch.library.custom_op(
    "skewconv::exponential_columns_backward",
    mutates_args=(),
    schema="(Tensor skew, Tensor radius, Tensor grad, SymInt count, bool inverse) -> Tensor",
)
def _opaque_columns_backward(skew: Tensor, radius: Tensor, grad: Tensor, count: int, inverse: bool) -> Tensor:
    with ordinary_dispatch(), torch.enable_grad():
        leaf = skew.detach().requires_grad_()
        columns = exponential_columns(leaf, count, inverse=inverse, radius=float(radius.detach()))
        (found,) = torch.autograd.grad(columns, leaf, grad)
    return found.contiguous()


@_opaque_columns.register_fake
def _(skew: Tensor, count: int, inverse: bool) -> tuple[Tensor, Tensor]:
    return skew.new_empty(skew.shape[0], count), torch.empty((), dtype=torch.float64)


@_opaque_columns_backward.register_fake
def _(skew: Tensor, radius: Tensor, grad: Tensor, count: int, inverse: bool) -> Tensor:
    return torch.empty_like(skew, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    skew, *ctx.arguments = inputs
    ctx.save_for_backward(skew, output[1])


def _backward(ctx: Any, grad: Tensor, _: Any) -> Any:
    return _opaque_columns_backward(*ctx.saved_tensors, grad, *ctx.arguments), None, None


_opaque_columns.register_autograd(_backward, setup_context=_setup)
