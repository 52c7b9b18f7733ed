"""Spectral normalisation of a skew filter by the Fantastic Four bound: estimated in training, proven in evaluation.

For a skew filter the reshapes come in equal pairs (R and S, T and U of the paper), so that the splits of the axes
(c_out, k_1, .., k_j | k_{j+1}, .., c_in) are all that is needed in one and two dimensions. With the channels last in
memory each of them is a view. In three dimensions the middle axis alone is left out, which only loosens the bound.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from skewconv.nn.soc.free_half import FreeHalf, assemble
from skewconv.nn.soc.scaled_filter import SplitNorm, at_taps, nonzero, normalised, rayleigh, splits
from skewconv.ops.torch_modes import tracing
from skewconv.rigor import factor_up, round_up, spectral_norm_upper_bound, sqrt_up

# Steps of Lanczos' method from a fixed start: a random filter of 1024 channels is then known to a part in a thousand.
_FRESH_STEPS = 24
# Vectors that are iterated together, and squarings of their Gram matrix, for 64 power steps within their span.
_BLOCK = 16
_SQUARINGS = 6
# The authors' refresh: so many power steps more, once in so many.
REFRESH_EVERY = 200
_REFRESH_STEPS = 50
_CONVERGED_STEPS = 500
# Weights between 2^-60 and 2^60 are normalised as they are.
_ORDINARY_EXPONENT = 60


class PowerStep(NamedTuple):
    """Leading singular vectors (groups, rows) and (groups, columns), their norms (groups,), and the next block."""

    u: Tensor
    v: Tensor
    norms: Tensor
    block: Tensor


def power_step(matrix: Tensor, block: Tensor) -> PowerStep:
    """One step of power iteration with a block of vectors, (groups, rows, k).

    Its norm is the largest ||A v|| over unit vectors v in the span of A^H U: at most that of A, and equal to it once
    the leading vector is in the span. A single vector would not do: training raises the singular values that no
    estimate sees, and it takes a single vector dozens of steps to find one that has just become the largest.
    """
    right = torch.linalg.qr(matrix.mH @ block).Q
    image = matrix @ right
    leading = _leading_vector(image.mH @ image)
    u, norms = _unit((image @ leading)[..., 0])
    return PowerStep(u, (right @ leading)[..., 0], norms, image / _nonzero(norms)[:, None, None])


def _leading_vector(gram: Tensor) -> Tensor:
    """The leading eigenvector (groups, k, 1) of positive matrices (groups, k, k): a column of a high power."""
    for _ in range(_SQUARINGS):
        gram = gram / _nonzero(gram.diagonal(dim1=-2, dim2=-1).real.sum(-1))[:, None, None]
        gram = gram @ gram
    largest = gram.diagonal(dim1=-2, dim2=-1).real.argmax(-1)
    column = gram.gather(-1, largest[:, None, None].expand(-1, gram.shape[-1], 1))
    return column / _nonzero(torch.linalg.vector_norm(column, dim=1))[..., None]


def _nonzero(values: Tensor) -> Tensor:
    # A zero filter has no direction; the floor keeps the step finite without touching any other filter.
    return values.clamp_min(torch.finfo(values.dtype).tiny)


def _unit(vectors: Tensor) -> tuple[Tensor, Tensor]:
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / _nonzero(norms), norms[..., 0]


def block_size(rows: int, columns: int) -> int:
    """The number of vectors of a block, for a split of this shape."""
    return min(_BLOCK, rows, columns)


def fresh_vectors(raw: Tensor, groups: int) -> list[Tensor]:
    """A block of left vectors of every split, (groups, rows, k), converged from a fixed start."""
    return [_lanczos(matrix) for matrix in splits(raw, groups)]


def refreshed(raw: Tensor, vectors: Sequence[Tensor], groups: int) -> list[Tensor]:
    """The blocks of every split after further power steps."""
    matrices = splits(raw, groups)
    return [converged(m, u.to(m.dtype), _REFRESH_STEPS).block for m, u in zip(matrices, vectors, strict=True)]


def _lanczos(matrix: Tensor) -> Tensor:
    """The leading left vectors of A in the span of u, A A^H u, (A A^H)^2 u, ...: (groups, rows, k).

    They come much nearer than as many power steps, each of which forgets the ones before it. The basis is made
    orthogonal twice, which is enough to rounding; a basis that is complete goes on with zeros.
    """
    rows = matrix.shape[1]
    u = torch.linspace(1, 2, rows, device=matrix.device).expand(matrix.shape[:2]).to(matrix.dtype)
    basis = torch.zeros(*u.shape, 0, dtype=u.dtype, device=u.device)
    for _ in range(min(_FRESH_STEPS, rows)):
        along = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
        for _ in range(2):
            u = u - (basis @ (basis.mH @ u[..., None]))[..., 0]
        length = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
        u = torch.where(length <= 1e-4 * along, 0.0, u / _nonzero(length))
        basis = torch.cat([basis, u[..., None]], -1)
        u = (matrix @ (matrix.mH @ u[..., None]))[..., 0]
    image = matrix.mH @ basis
    count = block_size(*matrix.shape[1:])
    return basis @ torch.linalg.eigh(image.mH @ image).eigenvectors[..., -count:]


def converged(matrix: Tensor, u: Tensor, steps: int = _CONVERGED_STEPS) -> PowerStep:
    """The last of many power steps."""
    step = power_step(matrix, u)
    for _ in range(steps - 1):
        step = power_step(matrix, step.block)
    return step


def leading(split: int, step: PowerStep, kernel: tuple[int, ...]) -> SplitNorm:
    """The norm of a split: of several groups only the largest moves it."""
    largest = torch.zeros_like(step.norms).index_fill(0, step.norms.argmax(), 1.0)
    return SplitNorm(step.norms.amax(), *at_taps(step.u * largest[:, None], step.v, split, kernel))


def _least(norms: Sequence[SplitNorm]) -> SplitNorm:
    """The smallest of some norms, chosen on their device: the host does not wait to know which."""
    values, *sides = (torch.stack(parts) for parts in zip(*norms, strict=True))
    index = values.argmin(0, keepdim=True)
    return SplitNorm(values.index_select(0, index)[0], *(side.index_select(0, index)[0] for side in sides))


def scaled_by_estimate(half: FreeHalf, vectors: Sequence[Tensor], norm_bound: float) -> tuple[Tensor, list[Tensor]]:
    """norm_bound L / (sqrt(taps) min_j ||split j||), the norms estimated by one power step; and the next vectors.

    The vectors are constants of the derivative, as in every spectral normalisation: the gradient of a norm is u v^H.
    """
    target = norm_bound / math.sqrt(half.taps.count)
    groups = half.centre.shape[0]
    if half.centre.is_meta or tracing():
        raw = assemble(*half)
        steps = [power_step(m, u.to(m.dtype)) for m, u in zip(splits(raw.detach(), groups), vectors, strict=True)]
        norms = [rayleigh(m, step.u, step.v) for m, step in zip(splits(raw, groups), steps, strict=True)]
        return raw * (target / nonzero(torch.stack(norms).amin())), [step.block for step in steps]
    with torch.no_grad():
        raw = assemble(*half)
        steps = [power_step(m, u.to(m.dtype)) for m, u in zip(splits(raw, groups), vectors, strict=True)]
        norm = _least([leading(split, step, half.taps.kernel) for split, step in enumerate(steps)])
        scale = target / nonzero(norm.value)
    return normalised(half, raw, scale, norm), [step.block for step in steps]


def belong_together(raw: Tensor, vectors: Sequence[Tensor], groups: int) -> bool:
    """Whether the vectors' estimate is within a tenth of what a few more power steps make of it."""
    for matrix, u in zip(splits(raw, groups), vectors, strict=True):
        here = power_step(matrix, u.to(raw.dtype)).norms.amax()
        if not here >= 0.9 * converged(matrix, u.to(raw.dtype), _REFRESH_STEPS).norms.amax():
            return False
    return True


def proven_norm(raw: Tensor, groups: int) -> tuple[float, int]:
    """sqrt(taps) min_j ||split j||, never below ||J||, and the j of the smallest."""
    norms = [spectral_norm_upper_bound(matrix) for matrix in splits(raw, groups)]
    taps = torch.Size(raw.shape[2:]).numel()
    smallest = min(norms)
    return math.nextafter(math.sqrt(taps), math.inf) * smallest * factor_up(8), norms.index(smallest)


@lru_cache(maxsize=1024)
def _rounded_norm_up(norm_bound: float, channels: int, kernel: tuple[int, ...], dtype: torch.dtype) -> float:
    limits = torch.finfo(dtype)
    u = Fraction(limits.eps) / 2
    rank = channels * max(math.prod(kernel[:j]) for j in range(len(kernel)))
    margin = (1 + u * Fraction(sqrt_up(Fraction(rank)))) * (1 + u) ** 3
    # Half of the least denormal in the real and in the imaginary part.
    underflow = 2 * u * Fraction(limits.smallest_normal)
    return round_up(Fraction(norm_bound) * margin + math.prod(kernel) * channels * underflow)


def rounded_norm_up(norm_bound: float, channels: int, kernel: tuple[int, ...], dtype: torch.dtype) -> float:
    """What a filter scaled to this proven norm can have after every entry was rounded to ``dtype``; rounded up.

    An entry changes by at most u |entry|, so a reshape of rank r changes by at most u ||.||_F <= u sqrt(r) ||.||; three
    more roundings are those of the scale (twice) and of its product with the filter. Entries that underflow change by
    at most a denormal's half, d, and ||J|| by at most sqrt(taps) times the Frobenius norm of that, taps channels d.
    """
    return _rounded_norm_up(norm_bound, channels, kernel, dtype)


# What torch.compiler.assume_constant_result does, without importing the compiler along with every layer.
rounded_norm_up._dynamo_marked_constant = True  # type: ignore[attr-defined]


def extreme_exponent(tensors: Sequence[Tensor]) -> int:
    """e where the largest entry is near 2^e and that is far from one; 0 where it is not, or is not finite.

    The scale that normalises a filter of extreme size may itself underflow or overflow; of one divided by 2^e it
    cannot.
    """
    # A filter of one channel and one tap has no free entry at all.
    largest = max((float(t.detach().abs().max()) for t in tensors if t.numel()), default=0.0)
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
    return exponent if abs(exponent) > _ORDINARY_EXPONENT else 0


def divided_by_power_of_two(tensor: Tensor, exponent: int) -> Tensor:
    """t 2^-e, exactly, in two steps: 2^-e alone may be no number of the dtype."""
    half = exponent // 2
    return tensor * math.ldexp(1.0, -half) * math.ldexp(1.0, half - exponent) if exponent else tensor
