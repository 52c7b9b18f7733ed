"""Spectral normalisation of a skew filter by the Fantastic Four bound: estimated in training, proved in evaluation.

For a skew filter the reshapes come in equal pairs (R and S, T and U of the paper), so that the splits of the axes
(c_out, k_1, .., k_j | k_{j+1}, .., c_in) are all that is needed in one and two dimensions. With the channels last in
memory each of them is a view. In three dimensions the middle axis alone is left out, which only loosens the bound.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from skewconv.ops._eigen import spectral_norm_upper_bound

# Enough for the norm of a random filter to a few parts in a hundred, and to a few in a thousand million.
_FRESH_STEPS = 16
_CONVERGED_STEPS = 500


def splits(raw: Tensor, groups: int) -> list[Tensor]:
    """The reshapes of a filter (m, m / groups, *kernel) as matrices (groups, rows, columns)."""
    blocks = raw.movedim(1, -1).unflatten(0, (groups, -1))
    axes = raw.dim() - 2
    return [blocks.flatten(2 + j).flatten(1, 1 + j) for j in range(axes)]


def power_step(matrix: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """One step of power iteration: the next left (groups, rows) and right (groups, columns) singular vectors."""
    v = _unit((matrix.mH @ u[..., None])[..., 0])
    return _unit((matrix @ v[..., None])[..., 0]), v


def rayleigh(matrix: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """max over groups of Re(u^H A v): at most the norm, and equal to it at the leading singular vectors."""
    return (u.conj() * (matrix @ v[..., None])[..., 0]).sum(-1).real.amax()


def _unit(vectors: Tensor) -> Tensor:
    # A zero filter has no direction; the floor keeps the step finite without touching any other filter.
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / norms.clamp_min(torch.finfo(vectors.dtype).tiny)


def fresh_vectors(raw: Tensor, groups: int) -> list[Tensor]:
    """Left singular vectors of every split after a few steps from a fixed start."""
    starts = [torch.linspace(1, 2, m.shape[1], device=raw.device).expand(m.shape[:2]) for m in splits(raw, groups)]
    return [converged(m, u.to(raw.dtype), _FRESH_STEPS)[0] for m, u in zip(splits(raw, groups), starts, strict=True)]


def converged(matrix: Tensor, u: Tensor, steps: int = _CONVERGED_STEPS) -> tuple[Tensor, Tensor]:
    """Left and right singular vectors after many power steps."""
    for _ in range(steps):
        u, v = power_step(matrix, u)
    return u, v


def scaled_by_estimate(
    raw: Tensor, vectors: Sequence[Tensor], groups: int, norm_bound: float
) -> tuple[Tensor, list[Tensor]]:
    """norm_bound L / (sqrt(taps) min_j ||split j||), the norms estimated by one power step; and the next vectors.

    The vectors are constants of the derivative, as in every spectral normalisation: the gradient of a norm is u v^H.
    """
    matrices = splits(raw.detach(), groups)
    steps = [power_step(m, u.to(raw.dtype)) for m, u in zip(matrices, vectors, strict=True)]
    target = norm_bound / math.sqrt(torch.Size(raw.shape[2:]).numel())
    following = [u for u, _ in steps]
    if raw.is_meta or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        estimates = torch.stack([rayleigh(m, u, v) for m, (u, v) in zip(splits(raw, groups), steps, strict=True)])
        return raw * (target / nonzero(estimates.amin())), following
    estimates = torch.stack([rayleigh(m, u, v) for m, (u, v) in zip(matrices, steps, strict=True)])
    split = int(estimates.argmin()) if len(steps) > 1 else 0
    scale = target / nonzero(estimates[split])
    return scaled(raw, scale, *steps[split], split, groups), following


def scaled(raw: Tensor, scale: Tensor, u: Tensor, v: Tensor, split: int, groups: int) -> Tensor:
    """scale L, where the scale is known to be inversely proportional to Re(u^H A v) for this split A of L.

    Only the derivative needs to know it; it costs a few passes over the filter.
    """
    result: Tensor = _Scaled.apply(raw, scale, u, v, split, groups)  # type: ignore[no-untyped-call]
    return result


def scaled_gradient(grad: Tensor, raw: Tensor, scale: Tensor, u: Tensor, v: Tensor, split: int, groups: int) -> Tensor:
    """The gradient of :func:`scaled` in L: scale (G - <L, G> / ||A|| u v^H)."""
    per_group = (u.conj() * (splits(raw, groups)[split] @ v[..., None])[..., 0]).sum(-1).real
    norm = nonzero(per_group.amax())
    # Of several groups only the largest moves the norm.
    leading = u * torch.zeros_like(per_group).index_fill(0, per_group.argmax(), 1.0)[:, None]
    if torch.is_grad_enabled():
        scale = scale * (norm.detach() / norm)
    # With the channels last in memory the gradient of a convolution is one flat array, like the filter.
    flat = grad.movedim(1, -1).contiguous()
    along = torch.vdot(raw.movedim(1, -1).reshape(-1), flat.reshape(-1)).real / norm
    matrix = splits(flat.movedim(-1, 1), groups)[split]
    turned = torch.baddbmm(matrix, (leading * -along)[..., None], v.conj()[:, None]) * scale
    return turned.reshape(flat.shape).movedim(-1, 1)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, scale: Tensor, u: Tensor, v: Tensor, split: int, groups: int) -> Tensor:
        ctx.save_for_backward(raw, scale, u, v)
        ctx.arguments = split, groups
        return raw * scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return scaled_gradient(grads[0], *ctx.saved_tensors, *ctx.arguments), None, None, None, None, None


def belong_together(raw: Tensor, vectors: Sequence[Tensor], groups: int) -> bool:
    """Whether the vectors' estimate is within a tenth of what a few more power steps make of it."""
    for matrix, u in zip(splits(raw, groups), vectors, strict=True):
        here = rayleigh(matrix, *power_step(matrix, u.to(raw.dtype)))
        if not here >= 0.9 * rayleigh(matrix, *converged(matrix, u.to(raw.dtype), _FRESH_STEPS)):
            return False
    return True


def nonzero(norm: Tensor) -> Tensor:
    """The zero filter is its own normalisation: one in place of its norm."""
    return torch.where(norm > 0, norm, torch.ones_like(norm))


def proven_norm(raw: Tensor, groups: int) -> tuple[float, int]:
    """sqrt(taps) min_j ||split j||, never below ||J||, and the j of the smallest."""
    norms = [spectral_norm_upper_bound(matrix) for matrix in splits(raw, groups)]
    taps = torch.Size(raw.shape[2:]).numel()
    smallest = min(norms)
    return math.nextafter(math.sqrt(taps), math.inf) * smallest * (1 + 2**-50), norms.index(smallest)


def rounding_margin(channels: int, kernel: tuple[int, ...], dtype: torch.dtype) -> float:
    """The factor by which rounding every entry of a normalised filter to ``dtype`` can raise its proven norm.

    An entry changes by at most u |entry|, so a reshape of rank r changes by at most u ||.||_F <= u sqrt(r) ||.||; two
    more roundings are those of the scale and of its product with the filter.
    """
    u = torch.finfo(dtype).eps / 2
    rank = channels * max(math.prod(kernel[:j]) for j in range(len(kernel)))
    return (1 + u * math.sqrt(rank)) * (1 + u) ** 3
