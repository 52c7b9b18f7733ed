"""Tables of waves e^(2 pi i f p / n) with whole turns taken off exactly, and the frequencies that tell real images."""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from skewconv.ops.torch_modes import tracing

# In frozen layers the transform of two-dimensional images of up to this many pixels is one product.
_TABLE_PIXELS = 32


def _turns(frequencies: Tensor, positions: Tensor, n: int) -> Tensor:
    """f p mod n, in integers: (f), (p) -> (f, p). The angle 2 pi turns / n is then below 2 pi, hence accurate."""
    return torch.outer(frequencies, positions) % n


def waves(frequencies: Tensor, positions: Tensor, n: int, sign: int) -> Tensor:
    """e^(+-2 pi i f p / n) along one axis: (f), (p) -> (f, p), complex128, with the sign given (1 or -1)."""
    angle = _turns(frequencies, positions, n).to(torch.float64) * (2 * math.pi / n)
    return torch.complex(angle.cos(), angle.sin() if sign > 0 else -angle.sin())


def half_of_frequencies(size: tuple[int, ...]) -> Tensor:
    """The frequencies that tell a real image, (frequencies, axes): the others, along the last axis, are conjugates."""
    return grid([torch.arange(n) for n in (*size[:-1], size[-1] // 2 + 1)])


def count_of_real_frequencies(size: tuple[int, ...]) -> int:
    return math.prod([2 - n % 2 for n in size])


def distinct_frequencies(size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Indices into ``half_of_frequencies``: the real frequencies, and one of each pair of conjugates.

    They are in the order of transforms along one axis after the other, the last one first: pairs inside the half by
    their last frequency, then those on its edges.
    """
    frequencies = half_of_frequencies(size)
    mine, theirs = frequency_numbers(frequencies, size)
    last = frequencies[:, -1]
    # The conjugate of a frequency inside the half lies outside of it.
    is_inside = 2 * (-last % size[-1]) > size[-1]
    order = torch.argsort(torch.where(is_inside, last, last + size[-1]), stable=True)
    return order[(theirs == mine)[order]], order[(is_inside | (theirs > mine))[order]]


def places_of_frequencies(size: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Indices on a device: the two of ``distinct_frequencies``, the rest of the half, and their conjugates' pairs."""
    table = kept_table(_joined_places, (size,), torch.empty(0, dtype=torch.int64, device=device))
    alone = count_of_real_frequencies(size)
    paired = (math.prod(size) - alone) // 2
    rest = (len(table) - alone - paired) // 2
    return table.split([alone, paired, rest, rest])


def half_of(real: Tensor, pairs: Tensor, size: tuple[int, ...]) -> Tensor:
    """Values at half of the frequencies, (frequencies, *), from those at the distinct ones, real and complex."""
    alone, paired, rest, sources = places_of_frequencies(size, pairs.device)
    half = pairs.new_empty(len(alone) + len(paired) + len(rest), *pairs.shape[1:])
    half[alone], half[paired], half[rest] = real.to(pairs.dtype), pairs, pairs[sources].conj()
    return half


def _joined_places(size: tuple[int, ...]) -> Tensor:
    alone, paired = distinct_frequencies(size)
    mine, theirs = frequency_numbers(half_of_frequencies(size), size)
    is_rest = torch.ones(len(mine), dtype=torch.bool)
    is_rest[torch.cat([alone, paired])] = False
    pair_of = torch.zeros(math.prod(size), dtype=torch.int64)
    pair_of[mine[paired]] = torch.arange(len(paired))
    return torch.cat([alone, paired, is_rest.nonzero().flatten(), pair_of[theirs[is_rest]]])


def frequency_numbers(frequencies: Tensor, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The row-major numbers of frequencies (f, axes), and those of their conjugates."""
    strides = torch.tensor([math.prod(size[axis + 1 :]) for axis in range(len(size))])
    return frequencies @ strides, -frequencies % torch.tensor(size) @ strides


def _distinct_waves(size: tuple[int, ...], positions: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """A row of cosines for each real frequency; two rows, cosines and sines, for each pair of conjugate ones."""
    alone, paired = distinct_frequencies(size)
    frequencies = half_of_frequencies(size)
    cos, sin = image_waves(frequencies[paired], positions, size)
    return image_waves(frequencies[alone], positions, size)[0], torch.stack([cos, sign * sin], 1).flatten(0, 1)


def wave_table(size: tuple[int, ...]) -> Tensor:
    """The real Fourier basis of images, an orthogonal matrix (pixels, pixels), float64, by :func:`_distinct_waves`."""
    real, pairs = _distinct_waves(size, grid([torch.arange(n) for n in size]), -1)
    return torch.cat([real, math.sqrt(2) * pairs]) / math.sqrt(math.prod(size))


def separate_tables(size: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Orthogonal tables of the same transform in two steps: along rows, and then along columns.

    Columns are real at the ends of the rows' frequencies, and between them complex, real parts above imaginary ones.
    Images of up to 32 pixels, or of other than two axes, are one column, so that the second step is all.
    """
    height, width = transform_sides(size)
    inner = complex_wave_table(height).movedim(0, 1).flatten(1) if width > 2 else torch.empty(0, 0).double()
    return wave_table((width,)), wave_table(size if width == 1 else (height,)), inner


def transform_sides(size: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of an image as :func:`separate_tables` takes it."""
    return (size[0], size[1]) if len(size) == 2 and math.prod(size) > _TABLE_PIXELS else (math.prod(size), 1)


def complex_wave_table(n: int) -> Tensor:
    """(2, 2 n, n), float64: times real and imaginary parts along an axis, those of their transform, in turn."""
    wave = waves(torch.arange(n), torch.arange(n), n, -1) / math.sqrt(n)
    return torch.stack([torch.stack([wave.real, wave.imag], 1), torch.stack([-wave.imag, wave.real], 1)]).flatten(1, 2)


def symbol_table(size: tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...], sign: int) -> Tensor:
    """(pixels, taps), float64: times the taps of filters of odd sizes, their symbols in the order of ``wave_table``.

    With sign -1 those are the conjugate ones.
    """
    positions = grid([d * (torch.arange(k) - k // 2) for k, d in zip(kernel, dilation, strict=True)])
    return torch.cat(_distinct_waves(size, positions, sign))


def grid(axes: list[Tensor]) -> Tensor:
    """Every combination of one entry from each axis, in row-major order: (combinations, axes)."""
    return torch.cartesian_prod(*axes).view(-1, len(axes))


def image_waves(frequencies: Tensor, positions: Tensor, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi (f . p) / n over all axes: (f, axes), (p, axes) -> two of (f, p), float64."""
    total = torch.zeros(len(frequencies), len(positions), dtype=torch.float64)
    for axis, n in enumerate(size):
        total += _turns(frequencies[:, axis], positions[:, axis], n).double() / n
    angles = 2 * math.pi * total
    # At half and quarter turns exactly zero: a remainder of 1e-16 would only breed subnormal numbers, which are slow.
    cos, sin = (wave.masked_fill(wave.abs() < 1e-12, 0.0) for wave in (angles.cos(), angles.sin()))
    return cos, sin


def kept_table(build: Callable[..., Tensor], arguments: tuple[object, ...], like: Tensor) -> Tensor:
    """The table that is built from these arguments, in the dtype and on the device of a tensor; cached."""
    if tracing():
        return build(*arguments).to(like.device, like.dtype)
    return _kept_table(build, like.dtype, like.device, *arguments)


def transform_table(build: Callable[..., Tensor], arguments: tuple[object, ...], like: Tensor, power: int) -> Tensor:
    """The same for a transform, or with power -1 for its inverse.

    Waves have few different entries, so that rounding them to bfloat16 changes norms by up to 0.5% a layer, always to
    the same side. Times a number there, and divided by it back, they are rounded to both sides.
    Compiled programs have them as they are.
    """
    if like.dtype != torch.bfloat16 or tracing():
        return kept_table(build, arguments, like)
    return kept_table(_times, (build, arguments, _evening_scale(build, arguments) ** power), like)


def _times(build: Callable[..., Tensor], arguments: tuple[object, ...], scale: float) -> Tensor:
    return build(*arguments) * scale


@lru_cache(maxsize=128)
def _evening_scale(build: Callable[..., Tensor], arguments: tuple[object, ...]) -> float:
    """The scale in [1, 2) at which there and back keep the norm best, on average and at every frequency."""
    with torch.inference_mode(False):
        exact = build(*arguments).movedim(-2, 0).flatten(1)

    def change(scale: float) -> float:
        there, back = ((exact * s).bfloat16().double() for s in (scale, 1 / scale))
        gains = (there * back).sum(1) / exact.square().sum(1) - 1
        return max(float(gains.mean().abs()), float(gains.abs().max()) / 3)

    return min((2 ** (step / 2048) for step in range(2048)), key=change)


@lru_cache(maxsize=128)
def _kept_table(build: Callable[..., Tensor], dtype: torch.dtype, device: torch.device, *arguments: object) -> Tensor:
    with torch.inference_mode(False):
        return build(*arguments).to(device, dtype)
