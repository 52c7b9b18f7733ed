"""The free half of a skew filter: what a layer stores, and the filter made from it."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skewconv.ops.torch_modes import compiling, ordinary_dispatch, tracing


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


def packed_shape(channels: int) -> tuple[int, int]:
    """The rectangle that holds the n (n - 1) / 2 entries below the diagonal of an n x n matrix.

    >>> packed_shape(4), packed_shape(5)
    ((3, 2), (5, 2))
    """
    return channels - 1 + channels % 2, channels // 2


class FreeHalf(NamedTuple):
    """The arguments of :func:`assemble`: a filter's free half, and how it is laid out."""

    free: Tensor | None
    centre: Tensor
    phase: Tensor | None
    taps: Taps
    channels: int

    @property
    def values(self) -> list[Tensor]:
        """The tensors that are there, in their order."""
        return [value for value in self[:3] if value is not None]


def assemble(free: Tensor | None, centre: Tensor, phase: Tensor | None, taps: Taps, channels: int) -> Tensor:
    """L from its free half, by copying and negation only: skew to the last bit.

    Args:
        free: (free taps, groups n, n), or None where the kernel has only its centre tap.
        centre: (groups, *packed_shape(n)): the centre tap below its diagonal.
        phase: (groups, n): the imaginary diagonal of the centre tap of a skew-Hermitian filter; None for real filters.
        taps: the taps of the kernel.
        channels: n, the channels of one group.

    Returns:
        (groups n, n, *odd kernel), the channels last in memory: the reshapes whose norms are wanted are then views.
    """
    if phase is not None:
        # A module moved to another dtype as a whole may have made it complex, or left it behind in precision.
        phase = phase.real.to(centre.real.dtype)
    if phase is None and centre.device.type == "cpu" and compiling():
        made: Tensor = _opaque_assemble(free, centre, taps.kernel, taps.free, taps.mirrored, channels)
        return made
    if tracing():
        return _assemble(free, centre, phase, taps, channels)
    result: Tensor = _Assemble.apply(free, centre, phase, taps, channels)  # type: ignore[no-untyped-call]
    return result


def fold(filter_: Tensor, taps: Taps, groups: int, *, is_complex: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """The adjoint of :func:`assemble`: the gradients of (free, centre, phase) from that of the filter."""
    channels = filter_.shape[1]
    stack = filter_.movedim(1, -1).reshape(groups, channels, taps.count, channels)
    free = stack.new_empty(len(taps.free), groups, channels, channels)
    for tap, t, mirrored in zip(free, taps.free, taps.mirrored, strict=True):
        torch.sub(stack[:, :, t], _adjoint(stack[:, :, mirrored]), out=tap)
    middle = stack[:, :, taps.centre]
    lower = middle - _adjoint(middle)
    phase = middle.diagonal(dim1=-2, dim2=-1).imag.clone() if is_complex else None
    return free.flatten(1, 2), packed(lower), phase


class _Assemble(torch.autograd.Function):
    """Assembling is linear, so its derivative is folding, and the derivative of that is assembling again."""

    @staticmethod
    def forward(
        ctx: Any, free: Tensor | None, centre: Tensor, phase: Tensor | None, taps: Taps, channels: int
    ) -> Tensor:
        ctx.arguments = taps, centre.shape[0], free is not None, phase is not None
        return _assemble(free, centre, phase, taps, channels)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        taps, groups, has_free, is_complex = ctx.arguments
        free, centre, phase = _Fold.apply(grads[0], taps, groups, is_complex)  # type: ignore[no-untyped-call]
        return free if has_free else None, centre, phase, None, None


class _Fold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, filter_: Tensor, taps: Taps, groups: int, is_complex: bool) -> Any:
        ctx.arguments = taps, filter_.shape[1]
        return fold(filter_, taps, groups, is_complex=is_complex)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        free, centre, phase = grads
        taps, channels = ctx.arguments
        return assemble(free if taps.free else None, centre, phase, taps, channels), None, None, None


def _assemble(free: Tensor | None, centre: Tensor, phase: Tensor | None, taps: Taps, channels: int) -> Tensor:
    groups = centre.shape[0]
    blocks = None if free is None else free.unflatten(1, (groups, channels))
    middle = _centre_tap(centre, phase, channels)
    if tracing():
        where = {taps.centre: middle}
        if blocks is not None:
            where |= dict(zip((*taps.free, *taps.mirrored), (*blocks, *blocks.mH.neg()), strict=True))
        blank = torch.zeros_like(middle)
        result = torch.stack([where.get(t, blank) for t in range(taps.count)], 2)
    else:
        allocate = centre.new_empty if taps.full else centre.new_zeros
        result = allocate(groups, channels, taps.count, channels)
        result[:, :, taps.centre] = middle
        for t, mirrored, block in zip(taps.free, taps.mirrored, () if blocks is None else blocks, strict=True):
            result[:, :, t] = block
            torch.neg(_adjoint(block), out=result[:, :, mirrored])
    return result.reshape(groups * channels, *taps.kernel, channels).movedim(-1, 1)


# Columns j < n // 2 of the triangle fill one side of the rectangle as they are; the rows and columns past them form a
# smaller triangle, which fits, transposed, into the rest. Slices and masks are all it takes, where indices would cost
# more than the filter itself. An odd n has a row more, so the two sides part along another diagonal.


def _centre_tap(centre: Tensor, phase: Tensor | None, channels: int) -> Tensor:
    """(groups, n, n), skew."""
    half, odd = channels // 2, channels % 2
    lower = centre.new_zeros(centre.shape[0], channels, channels)
    lower[:, 1 - odd :, :half] = centre.tril(-odd)
    lower[:, half + odd :, half : half + half] += _transpose(centre[:, :half].triu(1 - odd))
    middle = lower - _adjoint(lower)
    if phase is not None:
        middle = middle + torch.diag_embed(torch.complex(torch.zeros_like(phase), phase))
    return middle


def _transpose(matrices: Tensor) -> Tensor:
    """(groups, rows, columns) -> (groups, columns, rows), in order in memory.

    Whatever reads a transpose as it lies jumps from row to row with every entry. PyTorch copies it tile by tile, more
    than twice as fast, if it is that of one matrix without gaps.
    """
    if len(matrices) > 1:
        return matrices.mT.contiguous()
    return matrices[0].contiguous().mT.contiguous()[None]


def _adjoint(matrices: Tensor) -> Tensor:
    """The transpose, and the conjugate of what is complex."""
    transposed = _transpose(matrices)
    return transposed.conj().resolve_conj() if matrices.is_complex() else transposed


def packed(matrix: Tensor) -> Tensor:
    """The reverse of the first half of :func:`_centre_tap`: the entries below the diagonal, (groups, *packed_shape)."""
    channels = matrix.shape[-1]
    half, odd = channels // 2, channels % 2
    result = matrix[:, 1 - odd :, :half].tril(-odd)
    result[:, :half] += _transpose(matrix[:, half + odd :, half : half + half]).triu(1 - odd)
    return result


def free_half(skew: Tensor, taps: Taps, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """The reverse of :func:`assemble`: (free, centre, phase) of a skew filter of odd sizes; phase is zero if real."""
    channels = skew.shape[1]
    stack = skew.flatten(2).movedim(-1, 0)
    middle = stack[taps.centre].unflatten(0, (groups, channels))
    diagonal = middle.diagonal(dim1=-2, dim2=-1)
    return stack[list(taps.free)], packed(middle), diagonal.imag if skew.is_complex() else diagonal


# A compiler for processors makes slow loops of these transposes: it gets them as operators.


@torch.library.custom_op(
    "skewconv::assemble",
    mutates_args=(),
    schema="(Tensor? free, Tensor centre, int[] kernel, int[] free_taps, int[] mirrored, int channels) -> Tensor",
)
def _opaque_assemble(
    free: Tensor | None, centre: Tensor, kernel: Any, free_taps: Any, mirrored: Any, channels: int
) -> Tensor:
    with ordinary_dispatch(), torch.no_grad():
        return _assemble(free, centre, None, Taps(tuple(kernel), tuple(free_taps), tuple(mirrored)), channels)


@torch.library.custom_op(
    "skewconv::fold",
    mutates_args=(),
    schema="(Tensor filter_, int[] kernel, int[] free_taps, int[] mirrored, int groups) -> (Tensor, Tensor)",
)
def _opaque_fold(filter_: Tensor, kernel: Any, free_taps: Any, mirrored: Any, groups: int) -> tuple[Tensor, Tensor]:
    with ordinary_dispatch(), torch.no_grad():
        taps = Taps(tuple(kernel), tuple(free_taps), tuple(mirrored))
        return fold(filter_, taps, groups, is_complex=False)[:2]


@_opaque_assemble.register_fake
def _(free: Tensor | None, centre: Tensor, kernel: Any, free_taps: Any, mirrored: Any, channels: int) -> Tensor:
    return centre.new_empty(centre.shape[0] * channels, *kernel, channels).movedim(-1, 1)


@_opaque_fold.register_fake
def _(filter_: Tensor, kernel: Any, free_taps: Any, mirrored: Any, groups: int) -> tuple[Tensor, Tensor]:
    n = filter_.shape[1]
    return filter_.new_empty(len(free_taps), groups * n, n), filter_.new_empty(groups, *packed_shape(n))


def _setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    free, centre, *taps, _ = inputs
    ctx.arguments = *taps, centre.shape[0]
    ctx.has_free = free is not None


def _folded(ctx: Any, grad: Tensor) -> Any:
    free, centre = _opaque_fold(grad, *ctx.arguments)
    return free if ctx.has_free else None, centre, None, None, None, None


_opaque_assemble.register_autograd(_folded, setup_context=_setup)
