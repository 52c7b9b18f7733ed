"""The free half of a skew filter: what a layer stores, and the filter made from it."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor


@dataclass(frozen=True)
class Taps:
    """Which taps of the odd kernel are free, which are their negative transposes, in row-major positions."""

    kernel: tuple[int, ...]
    free: tuple[int, ...]
    mirrored: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of taps of the odd kernel."""
        return torch.Size(self.kernel).numel()

    @property
    def centre(self) -> int:
        """Position of the centre tap."""
        return self.count // 2

    @property
    def full(self) -> bool:
        """Whether every tap is free or mirrored, as in a kernel of odd sizes."""
        return 2 * len(self.free) + 1 == self.count


@lru_cache(maxsize=256)
def taps_of(kernel: tuple[int, ...]) -> Taps:
    """The free taps of a kernel: one of each pair t, -t of which the kernel reaches at least one.

    An even size is padded to odd in front, so it reaches one step further after the centre than before it.

    >>> taps_of((3,))
    Taps(kernel=(3,), free=(2,), mirrored=(0,))
    >>> len(taps_of((3, 3)).free), len(taps_of((2, 2)).free)
    (4, 3)
    """
    odd = tuple(k + 1 - k % 2 for k in kernel)
    offsets = list(product(*(range(-(k // 2), k // 2 + 1) for k in odd)))
    reached = {t for t in offsets if all(-((k - 1) // 2) <= o <= k // 2 for o, k in zip(t, kernel, strict=True))}
    last = len(offsets) - 1
    pairs = [i for i in range(last // 2 + 1, last + 1) if offsets[i] in reached or offsets[last - i] in reached]
    return Taps(odd, tuple(pairs), tuple(last - i for i in pairs))


def assemble(free: Tensor | None, centre: Tensor, phase: Tensor | None, taps: Taps, channels: int) -> Tensor:
    """L from its free half, by copying and negation only: skew to the last bit.

    Args:
        free: (free taps, groups n, n), or None where the kernel has only its centre tap.
        centre: (groups, n (n - 1) / 2): the centre tap below its diagonal, row by row.
        phase: (groups, n): the imaginary diagonal of the centre tap of a skew-Hermitian filter; None for real filters.
        taps: the taps of the kernel.
        channels: n, the channels of one group.

    Returns:
        (groups n, n, *odd kernel), the channels last in memory: the reshapes whose norms are wanted are then views.
    """
    groups = centre.shape[0]
    stack = _centre_tap(centre, phase, channels).reshape(1, groups * channels, channels)
    if free is not None:
        mirrored = free.unflatten(1, (groups, channels)).transpose(-2, -1).conj().resolve_conj().neg().flatten(1, 2)
        if taps.full:
            stack = torch.cat([mirrored.flip(0), stack, free])
        else:
            positions = torch.tensor([*taps.mirrored, taps.centre, *taps.free], device=free.device)
            blank = free.new_zeros(taps.count, *free.shape[1:])
            stack = blank.index_copy(0, positions, torch.cat([mirrored, stack, free]))
    return stack.transpose(0, 1).contiguous().unflatten(1, taps.kernel).movedim(-1, 1)


def _centre_tap(centre: Tensor, phase: Tensor | None, channels: int) -> Tensor:
    """(groups, n, n), skew."""
    groups = centre.shape[0]
    rows, columns = torch.tril_indices(channels, channels, -1, device=centre.device)
    group = torch.arange(groups, device=centre.device)[:, None]
    lower = centre.new_zeros(groups, channels, channels).index_put((group, rows, columns), centre)
    middle = lower - lower.mH
    if phase is not None:
        # A module moved to another dtype as a whole may have made it complex, or left it behind in precision.
        imaginary = phase.real.to(centre.real.dtype)
        middle = middle + torch.diag_embed(torch.complex(torch.zeros_like(imaginary), imaginary))
    return middle


def free_half(skew: Tensor, taps: Taps, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """The reverse of :func:`assemble`: (free, centre, phase) of a skew filter of odd sizes; phase is zero if real."""
    channels = skew.shape[1]
    stack = skew.flatten(2).movedim(-1, 0)
    middle = stack[taps.centre].unflatten(0, (groups, channels))
    rows, columns = torch.tril_indices(channels, channels, -1, device=skew.device)
    diagonal = middle.diagonal(dim1=-2, dim2=-1)
    return stack[list(taps.free)], middle[:, rows, columns], diagonal.imag if skew.is_complex() else diagonal
