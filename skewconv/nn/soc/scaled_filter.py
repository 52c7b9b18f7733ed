"""The normalised filter as a function of its free half, with a derivative that stays in that half.

A filter of many channels is larger than the images it meets, so each pass over it counts: the filter is scaled where it
was assembled, and its gradient is folded to the free half before anything else is done with it.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from skewconv.nn.soc.free_half import FreeHalf, Taps, assemble, fold, packed


class SplitNorm(NamedTuple):
    """The norm Re(u^H A v) of one split A of a filter, at its leading singular vectors u and v.

    Its derivative in A is u v^H. Put back into the shape of the filter, that is left[t] right[t]^H at the tap t: both
    are (taps, groups, n), whichever split it is.
    """

    value: Tensor
    left: Tensor
    right: Tensor


def splits(raw: Tensor, groups: int) -> list[Tensor]:
    """The reshapes of a filter (m, m / groups, *kernel) as matrices (groups, rows, columns)."""
    blocks = raw.movedim(1, -1).unflatten(0, (groups, -1))
    axes = raw.dim() - 2
    return [blocks.flatten(2 + j).flatten(1, 1 + j) for j in range(axes)]


def rayleigh(matrix: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """max over groups of Re(u^H A v): at most the norm, and equal to it at the leading singular vectors."""
    return (u.conj() * (matrix @ v[..., None])[..., 0]).sum(-1).real.amax()


def at_taps(u: Tensor, v: Tensor, split: int, kernel: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Vectors (groups, rows) and (groups, columns) of a split as (left, right), (taps, groups, n) each."""
    rows, columns = kernel[:split], kernel[split:]
    left = u.unflatten(1, (-1, *rows, *(1,) * len(columns))).expand(-1, -1, *kernel)
    right = v.unflatten(1, (*(1,) * len(rows), *columns, -1)).expand(-1, *kernel, -1)
    return left.flatten(2).permute(2, 0, 1), right.flatten(1, -2).transpose(0, 1)


def nonzero(norm: Tensor) -> Tensor:
    """The zero filter is its own normalisation: one in place of its norm."""
    return torch.where(norm > 0, norm, torch.ones_like(norm))


def normalised(half: FreeHalf, raw: Tensor, scale: Tensor, norm: SplitNorm) -> Tensor:
    """Scale L, where the scale is known to be inversely proportional to the norm of a split of L.

    Only the derivative needs to know it.

    Args:
        half: the free half of L.
        raw: L, assembled from it without a tape; it is scaled in place.
        scale, norm: numbers of L as it is.
    """
    with torch.no_grad():
        weight = raw.mul_(scale)
    result: Tensor = _Normalised.apply(*half[:3], weight, half.taps, scale, norm)  # type: ignore[no-untyped-call]
    return result


def on_tape(half: FreeHalf, scale: Tensor, norm: SplitNorm) -> Tensor:
    """The same on the autograd tape: the reference, differentiable any number of times."""
    raw = assemble(*half)
    taps = raw.flatten(2).unflatten(0, (half.centre.shape[0], -1)).permute(3, 0, 1, 2)
    value = nonzero((norm.left.conj() * (taps @ norm.right[..., None])[..., 0]).sum().real)
    return raw * (scale * (value.detach() / value))


@torch.no_grad()
def gradients(grad: Tensor, half: FreeHalf, scale: Tensor, norm: SplitNorm) -> tuple[Tensor, Tensor, Tensor | None]:
    """Those of (free, centre, phase): the fold of scale (G - <L, G> / ||A|| u v^H), by <L, G> = <half, fold G>."""
    groups, taps = half.centre.shape[0], half.taps
    folded = fold(grad, taps, groups, is_complex=half.phase is not None)
    along = torch.zeros_like(norm.value)
    for value, part in zip(half[:3], folded, strict=True):
        if value is not None and part is not None:
            along += torch.vdot(value.reshape(-1), part.reshape(-1)).real / nonzero(norm.value)
    left, right = norm.left * -along, norm.right
    # The fold of left right^H: at each free tap, and at the centre, the difference of two such products.
    here, there = [*taps.free, taps.centre], [*taps.mirrored, taps.centre]
    columns = torch.stack([left[here], -right[there]], -1)
    rows = torch.stack([right[here], left[there]], -2).conj()
    free, centre, phase = folded
    if taps.free:
        free.view(-1, half.channels, half.channels).baddbmm_(columns[:-1].flatten(0, 1), rows[:-1].flatten(0, 1))
    centre += packed(columns[-1] @ rows[-1])
    if phase is not None:
        phase += (left[taps.centre] * right[taps.centre].conj()).imag
    return free.mul_(scale), centre.mul_(scale), None if phase is None else phase.mul_(scale)


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        free: Tensor | None,
        centre: Tensor,
        phase: Tensor | None,
        weight: Tensor,
        taps: Taps,
        scale: Tensor,
        norm: SplitNorm,
    ) -> Tensor:
        ctx.save_for_backward(free, centre, phase, scale, *norm)
        ctx.arguments = taps, weight.shape[1]
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        free, centre, phase, scale, *norm_of = ctx.saved_tensors
        taps, channels = ctx.arguments
        half, norm = FreeHalf(free, centre, phase, taps, channels), SplitNorm(*norm_of)
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            wanted: list[Any] = [part for part, is_needed in zip(half[:3], needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(on_tape(half, scale, norm), wanted, grads[0], create_graph=True))
            parts: Any = [next(found) if is_needed else None for is_needed in needed]
        else:
            found_all = gradients(grads[0], half, scale, norm)
            parts = [part if is_needed else None for part, is_needed in zip(found_all, needed, strict=True)]
        return *parts, None, None, None, None
