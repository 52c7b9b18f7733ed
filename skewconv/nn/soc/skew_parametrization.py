"""The normalised skew filter as a function of its free half: copied and negated, then scaled by the Fantastic Four.

For a skew filter the reshapes come in equal pairs (R and S, T and U of the paper), so that the splits of the axes
(c_out, k_1, .., k_j | k_{j+1}, .., c_in) are all that is needed in one and two dimensions. With the channels last in
memory each of them is a view. In three dimensions the middle axis alone is left out, which only loosens the bound.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skewconv.nn.power_iteration import PowerStep, block_size, converged, power_step
from skewconv.ops.torch_modes import tracing
from skewconv.rigor import factor_up, round_up, spectral_norm_upper_bound, sqrt_up

# Weights between 2^-60 and 2^60 are normalised as they are.
_ORDINARY_EXPONENT = 60
# Power steps of an estimate that spares the proofs of larger norms.
_FEW_STEPS = 4


@dataclass(frozen=True)
class Taps:
    """Which taps of the odd kernel are free, which are their negative transposes, in row-major positions."""

    kernel: tuple[int, ...]
    free: tuple[int, ...]
    mirrored: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.kernel)


@lru_cache(maxsize=256)
def taps_of(kernel: tuple[int, ...]) -> Taps:
    """The free taps of a kernel: one of each pair t, -t of which at least one is in the kernel.

    An even size is padded to odd in front, so it goes one step further after the centre than before it.
    """
    odd = tuple(k + 1 - k % 2 for k in kernel)
    offsets = list(product(*(range(-(k // 2), k // 2 + 1) for k in odd)))
    inside = {t for t in offsets if all(-((k - 1) // 2) <= o <= k // 2 for o, k in zip(t, kernel, strict=True))}
    last = len(offsets) - 1
    pairs = [i for i in range(last // 2 + 1, last + 1) if offsets[i] in inside or offsets[last - i] in inside]
    return Taps(odd, tuple(pairs), tuple(last - i for i in pairs))


def packed_shape(channels: int) -> tuple[int, int]:
    """The rectangle that holds the n (n - 1) / 2 entries below the diagonal of an n x n matrix."""
    return channels - 1 + channels % 2, channels // 2


class FreeHalf(NamedTuple):
    """The parameters of a skew filter with n channels in a group."""

    free: Tensor | None  # (free taps, groups n, n); None where the kernel has only its centre tap
    centre: Tensor  # (groups, *packed_shape(n)): the centre tap below its diagonal
    phase: Tensor | None  # (groups, n): the imaginary diagonal of the centre tap; None for real filters
    taps: Taps
    channels: int


def assemble(half: FreeHalf) -> Tensor:
    """L, (groups n, n, *odd kernel), from its free half by copying and negation only: skew to the last bit.

    The channels are last in memory: the reshapes whose norms are wanted are then views.
    """
    free, centre, phase, taps, channels = half
    groups = centre.shape[0]
    blocks = None if free is None else free.unflatten(1, (groups, channels))
    # A module moved to another dtype as a whole may have made the phase complex, or left it behind in precision.
    middle = _centre_tap(centre, None if phase is None else phase.real.to(centre.real.dtype), channels)
    if tracing() or torch.is_grad_enabled():
        where = {taps.count // 2: middle}
        if blocks is not None:
            where |= dict(zip((*taps.free, *taps.mirrored), (*blocks, *blocks.mH.neg()), strict=True))
        blank = torch.zeros_like(middle)
        result = torch.stack([where.get(t, blank) for t in range(taps.count)], 2)
    else:
        allocate = centre.new_empty if 2 * len(taps.free) + 1 == taps.count else centre.new_zeros
        result = allocate(groups, channels, taps.count, channels)
        result[:, :, taps.count // 2] = middle
        for t, mirrored, block in zip(taps.free, taps.mirrored, () if blocks is None else blocks, strict=True):
            result[:, :, t] = block
            torch.neg(_adjoint(block), out=result[:, :, mirrored])
    return result.reshape(groups * channels, *taps.kernel, channels).movedim(-1, 1)


def free_half(skew: Tensor, taps: Taps, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """The reverse of :func:`assemble`: (free, centre, phase) of a skew filter of odd sizes; phase is zero if real."""
    channels = skew.shape[1]
    stack = skew.flatten(2).movedim(-1, 0)
    middle = stack[taps.count // 2].unflatten(0, (groups, channels))
    diagonal = middle.diagonal(dim1=-2, dim2=-1)
    return stack[list(taps.free)], packed(middle), diagonal.imag if skew.is_complex() else diagonal


# Columns j < n // 2 of the triangle fill one side of the rectangle as they are; the rows and columns past them form a
# smaller triangle, which fits, transposed, into the rest. Slices and masks are all it takes, where indices would cost
# more than the filter itself. An odd n has a row more, so the two sides part along another diagonal.


def _centre_tap(centre: Tensor, phase: Tensor | None, channels: int) -> Tensor:
    half, odd = channels // 2, channels % 2
    lower = centre.new_zeros(centre.shape[0], channels, channels)
    lower[:, 1 - odd :, :half] = centre.tril(-odd)
    lower[:, half + odd :, half : half + half] += _transpose(centre[:, :half].triu(1 - odd))
    middle = lower - _adjoint(lower)
    if phase is not None:
        middle = middle + torch.diag_embed(torch.complex(torch.zeros_like(phase), phase))
    return middle


def packed(matrix: Tensor) -> Tensor:
    """The reverse of the first half of :func:`_centre_tap`: the entries below the diagonal, (groups, *packed_shape)."""
    channels = matrix.shape[-1]
    half, odd = channels // 2, channels % 2
    result = matrix[:, 1 - odd :, :half].tril(-odd)
    result[:, :half] += _transpose(matrix[:, half + odd :, half : half + half]).triu(1 - odd)
    return result


def _transpose(matrices: Tensor) -> Tensor:
    """(groups, rows, columns) -> (groups, columns, rows), in order in memory.

    PyTorch copies a transpose tile by tile, more than twice as fast, if it is that of one matrix without gaps.
    """
    if len(matrices) > 1:
        return matrices.mT.contiguous()
    return matrices[0].contiguous().mT.contiguous()[None]


def _adjoint(matrices: Tensor) -> Tensor:
    """The transpose, and the conjugate of what is complex."""
    transposed = _transpose(matrices)
    return transposed.conj().resolve_conj() if matrices.is_complex() else transposed


# Normalisation


class SplitNorm(NamedTuple):
    """The norm Re(u^H A v) of one split A of a filter, at its leading singular vectors u and v.

    Its derivative u v^H in A is left[t] right[t]^H at the tap t of the filter: both are (taps, groups, n).
    """

    value: Tensor
    left: Tensor
    right: Tensor


def splits(raw: Tensor, groups: int) -> list[Tensor]:
    """The reshapes of a filter (m, m / groups, *kernel) as matrices (groups, rows, columns)."""
    blocks = raw.movedim(1, -1).unflatten(0, (groups, -1))
    axes = raw.dim() - 2
    return [blocks.flatten(2 + j).flatten(1, 1 + j) for j in range(axes)]


def split_norm(split: int, step: PowerStep, kernel: tuple[int, ...]) -> SplitNorm:
    """The norm of a split: of several groups only the largest moves it."""
    largest = torch.zeros_like(step.norms).index_fill(0, step.norms.argmax(), 1.0)
    rows, columns = kernel[:split], kernel[split:]
    u = step.u * largest[:, None]
    left = u.unflatten(1, (-1, *rows, *(1,) * len(columns))).expand(-1, -1, *kernel)
    right = step.v.unflatten(1, (*(1,) * len(rows), *columns, -1)).expand(-1, *kernel, -1)
    return SplitNorm(step.norms.amax(), left.flatten(2).permute(2, 0, 1), right.flatten(1, -2).transpose(0, 1))


def scaled_by_estimate(half: FreeHalf, vectors: Sequence[Tensor], norm_bound: float) -> tuple[Tensor, list[Tensor]]:
    """norm_bound L / (sqrt(taps) min_j ||split j||), the norms estimated by one power step; and the next vectors.

    The vectors are constants of the derivative, as in every spectral normalisation: the gradient of a norm is u v^H.
    """
    with torch.no_grad():
        raw = assemble(half)
        matrices = splits(raw, half.centre.shape[0])
        steps = [power_step(m, u.to(m.dtype)) for m, u in zip(matrices, vectors, strict=True)]
        norms = [split_norm(split, step, half.taps.kernel) for split, step in enumerate(steps)]
        # The least is chosen on its device: the host does not wait to know which.
        values, *sides = (torch.stack(parts) for parts in zip(*norms, strict=True))
        index = values.argmin(0, keepdim=True)
        norm = SplitNorm(values.index_select(0, index)[0], *(side.index_select(0, index)[0] for side in sides))
        scale = norm_bound / math.sqrt(half.taps.count) / _nonzero(norm.value)
    apply = on_tape if half.centre.is_meta or tracing() else partial(normalised, raw)
    return apply(half, scale, norm), [step.block for step in steps]


def _nonzero(norm: Tensor) -> Tensor:
    """The zero filter is its own normalisation: one in place of its norm."""
    return torch.where(norm > 0, norm, torch.ones_like(norm))


def normalised(raw: Tensor, half: FreeHalf, scale: Tensor, norm: SplitNorm) -> Tensor:
    """Scale L, where the scale is inversely proportional to a norm of L, which only the derivative needs to know.

    ``raw`` is L, assembled without a tape; it is scaled in place.
    """
    with torch.no_grad():
        weight = raw.mul_(scale)
    result: Tensor = _Normalised.apply(*half[:3], weight, half.taps, scale, norm)  # type: ignore[no-untyped-call]
    return result


def on_tape(half: FreeHalf, scale: Tensor, norm: SplitNorm) -> Tensor:
    """The same on the autograd tape, differentiable any number of times."""
    raw = assemble(half)
    taps = raw.flatten(2).unflatten(0, (half.centre.shape[0], -1)).permute(3, 0, 1, 2)
    value = _nonzero((norm.left.conj() * (taps @ norm.right[..., None])[..., 0]).sum().real)
    return raw * (scale * (value.detach() / value))


@torch.no_grad()
def _gradients(grad: Tensor, half: FreeHalf, scale: Tensor, norm: SplitNorm) -> tuple[Tensor, Tensor, Tensor | None]:
    """Those of (free, centre, phase): A* of scale (G - <L, G> / ||A|| u v^H) for the adjoint A* of assembling.

    <L, G> is that of the free half with A* G.
    """
    taps, middle, groups, channels = half.taps, half.taps.count // 2, half.centre.shape[0], half.channels
    stack = grad.movedim(1, -1).reshape(groups, channels, taps.count, channels)
    blocks = stack.new_empty(len(taps.free), groups, channels, channels)
    for block, t, mirrored in zip(blocks, taps.free, taps.mirrored, strict=True):
        torch.sub(stack[:, :, t], _adjoint(stack[:, :, mirrored]), out=block)
    tap = stack[:, :, middle]
    phase = None if half.phase is None else tap.diagonal(dim1=-2, dim2=-1).imag.clone()
    free, centre = blocks.flatten(1, 2), packed(tap - _adjoint(tap))
    along = torch.zeros_like(norm.value)
    for value, part in zip(half[:3], (free, centre, phase), strict=True):
        if value is not None and part is not None:
            along += torch.vdot(value.reshape(-1), part.reshape(-1)).real / _nonzero(norm.value)
    left, right = norm.left * -along, norm.right
    # A* of left right^H: at each free tap, and at the centre, the difference of two such products.
    here, there = [*taps.free, middle], [*taps.mirrored, middle]
    columns = torch.stack([left[here], -right[there]], -1)
    rows = torch.stack([right[here], left[there]], -2).conj()
    if taps.free:
        free.view(-1, channels, channels).baddbmm_(columns[:-1].flatten(0, 1), rows[:-1].flatten(0, 1))
    centre += packed(columns[-1] @ rows[-1])
    if phase is not None:
        phase += (left[middle] * right[middle].conj()).imag
    return free.mul_(scale), centre.mul_(scale), None if phase is None else phase.mul_(scale)


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        free, centre, phase, weight, taps, scale, norm = arguments
        ctx.save_for_backward(free, centre, phase, scale, *norm)
        ctx.arguments = taps, weight.shape[1]
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        free, centre, phase, scale, *norm_of = ctx.saved_tensors
        half, norm = FreeHalf(free, centre, phase, *ctx.arguments), SplitNorm(*norm_of)
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            wanted: list[Any] = [part for part, is_needed in zip(half[:3], needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(on_tape(half, scale, norm), wanted, grads[0], create_graph=True))
            parts: Any = [next(found) if is_needed else None for is_needed in needed]
        else:
            found_all = _gradients(grads[0], half, scale, norm)
            parts = [part if is_needed else None for part, is_needed in zip(found_all, needed, strict=True)]
        return *parts, None, None, None, None


# Proven norms


def proven_norm(raw: Tensor, groups: int) -> tuple[float, int]:
    """sqrt(taps) min_j ||split j||, never below ||J||, and the j of the smallest."""
    # Exact, and no less than what QR factors are made in.
    matrices = splits(raw.to(torch.promote_types(raw.dtype, torch.float32)), groups)
    starts = [
        torch.ones(*m.shape[:2], 1).to(m) + torch.eye(m.shape[1], block_size(*m.shape[1:])).to(m) for m in matrices
    ]
    estimates = [float(converged(m, u, _FEW_STEPS).norms.amax()) for m, u in zip(matrices, starts, strict=True)]
    smallest, index = math.inf, 0
    for split in sorted(range(len(matrices)), key=estimates.__getitem__):
        # An estimate is at most the norm: one above a norm that is proven needs no proof.
        if not estimates[split] > smallest * (1 + 1e-3):
            norm = spectral_norm_upper_bound(matrices[split])
            smallest, index = (norm, split) if norm < smallest else (smallest, index)
    root = math.nextafter(math.sqrt(math.prod(raw.shape[2:])), math.inf)
    return root * smallest * factor_up(8), index


@lru_cache(maxsize=1024)
def rounded_norm_up(norm_bound: float, channels: int, kernel: tuple[int, ...], dtype: torch.dtype) -> float:
    """The largest norm of a filter of this proven norm after every entry was rounded to ``dtype``; rounded up.

    An entry changes by at most u |entry|, so a reshape of rank r changes by at most u ||.||_F <= u sqrt(r) ||.||; three
    more roundings are those of the scale (twice) and of its product with the filter. Entries that underflow change by
    at most a denormal's half, d, and ||J|| by at most taps channels d.
    """
    limits = torch.finfo(dtype)
    u = Fraction(limits.eps) / 2
    rank = channels * max(math.prod(kernel[:j]) for j in range(len(kernel)))
    margin = (1 + u * Fraction(sqrt_up(Fraction(rank)))) * (1 + u) ** 3
    # Half of the least denormal in the real and in the imaginary part.
    underflow = 2 * u * Fraction(limits.smallest_normal)
    return round_up(Fraction(norm_bound) * margin + math.prod(kernel) * channels * underflow)


def extreme_exponent(tensors: Sequence[Tensor]) -> int:
    """e where the largest entry is near 2^e, far from one: the scale that normalises it may underflow or overflow."""
    # A filter of one channel and one tap has no free entry at all.
    largest = max((float(t.detach().abs().max()) for t in tensors if t.numel()), default=0.0)
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
    return exponent if abs(exponent) > _ORDINARY_EXPONENT else 0


def divided_by_power_of_two(tensor: Tensor, exponent: int) -> Tensor:
    """t 2^-e, exactly, in two steps: 2^-e alone may be no number of the dtype."""
    half = exponent // 2
    return tensor * math.ldexp(1.0, -half) * math.ldexp(1.0, half - exponent) if exponent else tensor
