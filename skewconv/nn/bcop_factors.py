"""Orthonormal bases of given spans, and the product of two-tap filters that they make: the parts of BCOP."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from skewconv.nn.matrix_inverse import known_inverse
from skewconv.ops.torch_modes import tracing, values_at_hand


def bjorck(matrix: Tensor, iterations: int) -> Tensor:
    """W <- W + W (I - W^T W) / 2, from W / sqrt(||W||_1 ||W||_inf): converges to the nearest orthonormal matrix.

    Args:
        matrix: (*batch, rows, columns); the shorter side becomes orthonormal.
        iterations: the most steps; fewer once W^T W = I to rounding, where a value may be waited for.
    """
    if matrix.numel() == 0:
        return matrix
    tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
    w = tall / _scale(tall)
    identity = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
    # The error after a step is of the order of the residual's square; float64 is for proofs, which may wait anywhere.
    looks, small = matrix.dtype == torch.float64 or _may_wait(matrix), 0.1 * torch.finfo(matrix.dtype).eps ** 0.5
    for _ in range(iterations):
        residual = identity - w.mT @ w
        w = w + 0.5 * (w @ residual)
        if looks and float(residual.detach().abs().max()) < small:
            break
    return w if tall is matrix else w.mT


def basis_for_projector(matrix: Tensor, iterations: int) -> Tensor:
    """V with orthonormal columns that span those of W: W R^-1 with W^T W = R^T R (Cholesky), and a step of Björck's.

    A projector V V^T is the same for every such basis, so it need not be the nearest one, for which Björck's iteration
    multiplies twenty times. Where W is too near to losing rank for a Gram matrix, and where no value may be waited for,
    it does so. Gradients are those of functions of the projector: nothing else of V means anything.

    Args:
        matrix: W, (batch, rows, columns), no wider than it is high.
        iterations: see :func:`bjorck`.
    """
    if matrix.numel() == 0 or not _may_wait(matrix):
        return bjorck(matrix, iterations)
    found = _basis_and_inverse(matrix.detach())
    if found is None:
        return bjorck(matrix, iterations)
    basis: Tensor = _Basis.apply(matrix, found)  # type: ignore[no-untyped-call]
    return basis


def _basis_and_inverse(matrix: Tensor) -> tuple[Tensor, Tensor] | None:
    """(V, R^-T) with W = V R; None where W^T W is too near to being singular."""
    scale = _scale(matrix)
    w = matrix / scale
    factor, failed = torch.linalg.cholesky_ex(w.mT @ w)
    identity = torch.eye(w.shape[-1], dtype=w.dtype)
    inverse = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    basis = w @ inverse.mT
    residual = identity - basis.mT @ basis
    # The last step squares the residual.
    near = float(residual.abs().max()) <= torch.finfo(w.dtype).eps ** 0.5
    if not near or int(failed.max()) > 0:
        return None
    return torch.baddbmm(basis, basis, residual, alpha=0.5), inverse / scale


class _Basis(torch.autograd.Function):
    """V of W = V R, with the derivative of the projector: P' = (I - P) W' R^-1 V^T, and its transpose.

    For a function of P, the gradient G in V makes (I - P) G R^-T that in W. Turning V to V Q turns G to G Q and R to
    Q^T R, and leaves this what it is; so derivatives of any order are right, of functions of the projector.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, matrix: Tensor, found: tuple[Tensor, Tensor]) -> Tensor:
        ctx.save_for_backward(matrix, *found)
        return found[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (matrix, basis, inverse) = gradients, ctx.saved_tensors
        outside = torch.baddbmm(gradient, basis, basis.mT @ gradient, alpha=-1)
        if torch.is_grad_enabled():
            # The factor as a function of W, for the second derivative; all of it, as it is triangular here only.
            inverse = known_inverse((basis.mT @ matrix).mT, inverse)
        return outside @ inverse, None


def _may_wait(matrix: Tensor) -> bool:
    """Whether looking at a value costs nothing; compilers have none to look at."""
    return values_at_hand(matrix.device) and not tracing()


def _scale(matrix: Tensor) -> Tensor:
    """sqrt(||W||_1 ||W||_inf) >= ||W||: (*batch, 1, 1), above zero."""
    size = matrix.detach().abs()
    scale = (size.sum(-2).amax(-1) * size.sum(-1).amax(-1)).sqrt()
    return scale.clamp_min(torch.finfo(matrix.dtype).tiny)[..., None, None]


def block_convolution(rows: Tensor, factors: Sequence[tuple[Tensor, int]]) -> Tensor:
    """rows * [V V^T; I - V V^T] * ...: a filter of one tap, times a filter of two taps for each factor.

    Args:
        rows: (r, m), the only tap of the first filter.
        factors: matrices V, (m, rank), with orthonormal columns, and the spatial axis of the two taps, 0 or 1.

    Returns:
        (k, l, r, m): the matrix of each tap, for k - 1 factors along axis 0 and l - 1 along axis 1.
    """
    taps = rows[None, None]
    for basis, axis in factors:
        taps = times_factor(taps, basis, axis)
    return taps


def times_factor(taps: Tensor, basis: Tensor, axis: int) -> Tensor:
    """(.., n, .., r, m) times one filter of two taps: (.., n + 1, .., r, m)."""
    if not tracing():
        made: Tensor = _TimesFactor.apply(taps, basis, axis)  # type: ignore[no-untyped-call]
        return made
    kept = (taps @ basis) @ basis.mT
    moved = taps - kept
    none = (0, 0) * (3 - axis)
    return F.pad(kept, (*none, 0, 1)) + F.pad(moved, (*none, 1, 0))


class _TimesFactor(torch.autograd.Function):
    """The same product with fewer passes over the taps: K = T V V^T stays where it is, T - K moves by one tap."""

    @staticmethod
    def forward(ctx: Any, taps: Tensor, basis: Tensor, axis: int) -> Tensor:
        inner = taps @ basis
        kept, count = inner @ basis.mT, taps.shape[axis]
        shape = list(taps.shape)
        shape[axis] += 1
        made = taps.new_empty(shape)
        made.narrow(axis, 1, count).copy_(taps).sub_(kept)
        made.narrow(axis, 0, 1).zero_()
        made.narrow(axis, 0, count).add_(kept)
        ctx.axis = axis
        ctx.save_for_backward(taps, basis, inner)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (gradient,), (taps, basis, inner), axis = gradients, ctx.saved_tensors, ctx.axis
        if torch.is_grad_enabled():
            inner = taps @ basis
        count = taps.shape[axis]
        stays, moves = gradient.narrow(axis, 0, count), gradient.narrow(axis, 1, count)
        of_kept = (stays - moves).flatten(0, 2)
        of_inner = of_kept @ basis
        of_taps = torch.addmm(moves.flatten(0, 2), of_inner, basis.mT).view(taps.shape)
        of_basis = torch.addmm(of_kept.mT @ inner.flatten(0, 2), taps.flatten(0, 2).mT, of_inner)
        return of_taps, of_basis, None
