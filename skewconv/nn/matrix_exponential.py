"""A few columns of the exponential of a skew-symmetric matrix."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skewconv.ops.engines.adjoint import apply_recurrence
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.engines.matrix_products import MatrixProducts
from skewconv.ops.series import Recurrence
from skewconv.ops.torch_modes import batched, compiling, ordinary_dispatch

# The Chebyshev series goes on beyond its interval: the estimate may be a few tenths short before its error shows.
_STEPS, _SAFETY = 8, 1.25
_LARGEST_RADIUS = 200.0


def exponential_columns(skew: Tensor, count: int, *, inverse: bool = False) -> Tensor:
    """The first columns of exp(A), or of exp(-A), for a skew-symmetric A: (m, m) -> (m, count).

    A few columns come from the Chebyshev series exp(A) x = J_0(r) x + 2 sum_k J_k(r) phi_k on [-i r, i r]: products of
    A with these columns only, where the derivative of a full exponential takes that of a matrix twice as large.
    """
    if compiling():
        made: Tensor = _opaque_columns(skew, count, inverse)
        return made
    # Not known: the norms of matrices that torch.func.vmap has stacked, and those that an exported program will meet.
    is_known = not (batched(skew) or torch.compiler.is_compiling())
    radius = _SAFETY * _norm_estimate(skew.detach()) if is_known else math.inf
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
    "skewconv::exponential_columns", mutates_args=(), schema="(Tensor skew, SymInt count, bool inverse) -> Tensor"
)
def _opaque_columns(skew: Tensor, count: int, inverse: bool) -> Tensor:
    with ordinary_dispatch(), torch.no_grad():
        return exponential_columns(skew, count, inverse=inverse).contiguous()


@torch.library.custom_op(
    "skewconv::exponential_columns_backward",
    mutates_args=(),
    schema="(Tensor skew, Tensor grad, SymInt count, bool inverse) -> Tensor",
)
def _opaque_columns_backward(skew: Tensor, grad: Tensor, count: int, inverse: bool) -> Tensor:
    with ordinary_dispatch(), torch.enable_grad():
        leaf = skew.detach().requires_grad_()
        (found,) = torch.autograd.grad(exponential_columns(leaf, count, inverse=inverse), leaf, grad)
    return found.contiguous()


@_opaque_columns.register_fake
def _(skew: Tensor, count: int, inverse: bool) -> Tensor:
    return skew.new_empty(skew.shape[0], count)


@_opaque_columns_backward.register_fake
def _(skew: Tensor, grad: Tensor, count: int, inverse: bool) -> Tensor:
    return torch.empty_like(skew, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    skew, *ctx.arguments = inputs
    ctx.save_for_backward(skew)


def _backward(ctx: Any, grad: Tensor) -> Any:
    (skew,) = ctx.saved_tensors
    return _opaque_columns_backward(skew, grad, *ctx.arguments), None, None


_opaque_columns.register_autograd(_backward, setup_context=_setup)
