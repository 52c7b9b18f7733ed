"""Block convolution orthogonal parameterization (BCOP): an orthogonal filter as a product of two-tap filters."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from skewconv.nn.eval_operator import ProvenOperator, Size, at_precision
from skewconv.nn.matrix_functions import known_inverse
from skewconv.nn.proven_conv import FilterConv2d, Orthogonal
from skewconv.ops.convolution import convolve
from skewconv.ops.engines.spectral_engine import circular_convolve
from skewconv.ops.products import addmm, matmul
from skewconv.ops.torch_modes import tracing, values_at_hand, without_autocast
from skewconv.rigor import filter_gram_defect_upper_bound, non_expansive_scale

# From singular values of 1e-10, Björck's iteration reaches 1 to the precision of float64 in 65 steps.
_MOST_ITERATIONS, _TRAINING_ITERATIONS = 80, 20


class BCOP2d(Orthogonal, FilterConv2d):
    """F = H * [P_1; I - P_1] * [Q_1, I - Q_1] * ... with H orthogonal and P, Q symmetric projectors of rank m / 2.

    >>> import torch
    >>> layer = BCOP2d(2, 8, 3, stride=2).eval()
    >>> x = torch.randn(1, 2, 8, 8)
    >>> layer(x).shape, bool((layer.inverse(layer(x)) - x).abs().max() < 1e-5)
    (torch.Size([1, 8, 4, 4]), True)

    Each two-tap factor P + (I - P) z is unitary for |z| = 1, so their product is an orthogonal convolution with
    circular padding, whose rows are cut to c_out or columns to c_in stride^2. H comes from Björck's iteration, the
    projectors from Cholesky factors (:func:`basis_for_projector`). In eval mode the filter is computed in float64, kept
    until the parameters change, and scaled by about one rounding error so that its norm is proven to be <= 1.

    Björck's iteration makes 20 steps in training; in eval mode it goes on until it has converged. The arguments are
    those of nn.Conv2d, with limits that :mod:`skewconv.nn.proven_conv` names.

    Reference: Li, Haque, Anil, Lucas, Grosse, Jacobsen, "Preventing gradient attenuation in Lipschitz constrained
    convolutional networks", 2019.
    """

    raw_orthogonal: nn.Parameter
    raw_projectors: nn.Parameter | None

    def _shapes_of_group(self) -> dict[str, tuple[int, ...]]:
        (_, rows), m, factors = self.group_channels, max(self.group_channels), 2 * (self.kernel_size - 1)
        # Only the first c_out rows of H survive, and any orthonormal rows complete to an orthogonal matrix.
        return {"raw_orthogonal": (rows, m), "raw_projectors": (factors, m, m // 2)}

    def _draw(self) -> None:
        # Uniformly random orthonormal matrices, where Björck's iteration is fastest.
        for source in self._sources():
            for raw in source.view(-1, *source.shape[-2:]):
                raw.copy_(nn.init.orthogonal_(torch.empty(raw.shape, device=raw.device)))

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.groups == max(self.dilation) == 1:
            return circular_convolve(x, weight)
        return convolve(x, weight, padding_mode="circular", dilation=self.dilation, groups=self.groups)

    def _prove(self, sources: Sequence[Tensor], size: Size) -> ProvenOperator:
        exact, dtype = self._exact(sources, size), sources[0].dtype

        def defect(weight: Tensor, square: float) -> float:
            # The maximum of PyTorch, unlike Python's, is NaN where one is.
            blocks = [filter_gram_defect_upper_bound(block, square) for block in weight.chunk(self.groups)]
            return float(torch.tensor(blocks, dtype=torch.float64).max())

        scale, gain = non_expansive_scale(exact, dtype, defect)
        return ProvenOperator((exact * scale).to(sources[0]), scale, gain)

    def _joined(self, operators: list[Tensor]) -> Tensor:
        return torch.cat(operators)

    def _computed_group(self, sources: Sequence[Tensor], size: Size, dtype: torch.dtype, *, exact: bool) -> Tensor:
        iterations = _MOST_ITERATIONS if exact else _TRAINING_ITERATIONS
        raw_orthogonal, *rest = (at_precision(source, dtype) for source in sources)
        # Projectors of rank zero, or none: nothing to learn.
        raw_projectors = rest[0] if rest else raw_orthogonal.new_empty(self._shapes_of_group()["raw_projectors"])
        with without_autocast(raw_orthogonal.device):
            rows = bjorck(raw_orthogonal, iterations)
            bases = basis_for_projector(raw_projectors, iterations).unbind(0)
            inputs, outputs = self.group_channels
            # They shift along height and width in turn.
            factors = [(basis, index % 2) for index, basis in enumerate(bases)]
            if inputs >= outputs:
                taps = block_convolution(rows, factors)
            else:
                # The transposed product, from its other end: only c_in rows are carried through the factors.
                start = torch.eye(inputs, rows.shape[1], dtype=dtype, device=rows.device)
                taps = matmul(block_convolution(start, factors[::-1]), rows.mT).mT
        return taps.permute(2, 3, 0, 1).contiguous()


def bjorck(matrix: Tensor, iterations: int) -> Tensor:
    """W <- W + W (I - W^T W) / 2, from W / sqrt(||W||_1 ||W||_inf): converges to the nearest orthonormal matrix.

    The shorter side of (*batch, rows, columns) becomes orthonormal, in fewer steps than ``iterations`` once W^T W = I
    to rounding, where a value may be waited for.
    """
    if matrix.numel() == 0:
        return matrix
    tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
    w = tall / _scale(tall)
    identity = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
    # The error after a step is of the order of the residual's square; float64 is for proofs, which may wait anywhere.
    looks, small = matrix.dtype == torch.float64 or _may_wait(matrix), 0.1 * torch.finfo(matrix.dtype).eps ** 0.5
    for _ in range(iterations):
        residual = identity - matmul(w.mT, w)
        w = w + 0.5 * matmul(w, residual)
        if looks and float(residual.detach().abs().max()) < small:
            break
    return w if tall is matrix else w.mT


def basis_for_projector(matrix: Tensor, iterations: int) -> Tensor:
    """V with orthonormal columns that span those of W: W R^-1 with W^T W = R^T R (Cholesky), and a step of Björck's.

    A projector V V^T is the same for every such basis, so it need not be the nearest one, for which Björck's iteration
    multiplies twenty times. Where W (batch, rows, columns) is too near to losing rank for a Gram matrix, and where no
    value may be waited for, it does so. Gradients are those of functions of the projector.
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
    """True if looking at a value costs nothing; compilers have none to look at."""
    return values_at_hand(matrix.device) and not tracing()


def _scale(matrix: Tensor) -> Tensor:
    """sqrt(||W||_1 ||W||_inf) >= ||W||: (*batch, 1, 1), above zero."""
    size = matrix.detach().abs()
    scale = (size.sum(-2).amax(-1) * size.sum(-1).amax(-1)).sqrt()
    return scale.clamp_min(torch.finfo(matrix.dtype).tiny)[..., None, None]


def block_convolution(rows: Tensor, factors: Sequence[tuple[Tensor, int]]) -> Tensor:
    """rows * [V V^T; I - V V^T] * ...: a filter of one tap, (r, m), times one of two taps along an axis a factor.

    The result is the matrix of each tap, (k, l, r, m), for k - 1 factors along axis 0 and l - 1 along axis 1.
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
    kept = matmul(matmul(taps, basis), basis.mT)
    moved = taps - kept
    none = (0, 0) * (3 - axis)
    return F.pad(kept, (*none, 0, 1)) + F.pad(moved, (*none, 1, 0))


class _TimesFactor(torch.autograd.Function):
    """The same product with fewer passes over the taps: K = T V V^T stays where it is, T - K moves by one tap."""

    @staticmethod
    def forward(ctx: Any, taps: Tensor, basis: Tensor, axis: int) -> Tensor:
        inner = matmul(taps, basis)
        kept, count = matmul(inner, basis.mT), taps.shape[axis]
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
            inner = matmul(taps, basis)
        count = taps.shape[axis]
        stays, moves = gradient.narrow(axis, 0, count), gradient.narrow(axis, 1, count)
        of_kept = (stays - moves).flatten(0, 2)
        of_inner = matmul(of_kept, basis)
        of_taps = addmm(moves.flatten(0, 2), of_inner, basis.mT).view(taps.shape)
        of_basis = addmm(matmul(of_kept.mT, inner.flatten(0, 2)), taps.flatten(0, 2).mT, of_inner)
        return of_taps, of_basis, None
