"""The spectrum of real images as rows of real numbers, by products with tables of waves or by an FFT."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from skewconv.ops.fourier import (
    complex_wave_table,
    count_of_real_frequencies,
    half_of,
    places_of_frequencies,
    transform_table,
    wave_table,
)
from skewconv.ops.products import baddbmm, bmm, matmul
from skewconv.ops.torch_modes import tracing, without_autocast

# Up to this many pixels the transform is one product; beyond, it is one along each axis up to this side, then an FFT.
_TABLE_PIXELS, _TABLE_SIDE = 64, 64
# Other numbers of axes have tables of all pixels up to here.
_TABLE_OTHERS = 128


class _Isometry(torch.autograd.Function):
    """An orthogonal map: its gradient is its transpose, where PyTorch's own of a transform takes several transforms."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], back: Callable[..., Any], *values: Tensor) -> Any:
        ctx.back = back
        return run(*values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        # The engine that runs backward has the caller's autocast state, which may differ from that of forward.
        with without_autocast(grads[0].device):
            found = ctx.back(*grads)
        return None, None, *(found if isinstance(found, tuple) else (found,))


def transform(x: Tensor, groups: int, power: int = 1) -> tuple[Tensor, Tensor]:
    """The spectrum of images (batch, groups * c, *size) in rows, with the norm of the images but in bfloat16.

    (frequencies * groups, batch, c) of real frequencies, and (pairs * groups, batch, 2 c): all real parts of a group
    before all imaginary ones. The frequencies are those of :func:`skewconv.ops.fourier.distinct_frequencies`. In
    bfloat16 it is scaled by a power of a number (:func:`skewconv.ops.fourier.transform_table`): 1 there and -1 back.
    """
    run = partial(_spectrum_of, groups=groups, power=power)
    back = partial(inverse_transform, groups=groups, size=tuple(x.shape[2:]), power=power)
    return run(x) if tracing() else _Isometry.apply(run, back, x)  # type: ignore[no-untyped-call]


def inverse_transform(real: Tensor, pairs: Tensor, *, groups: int, size: tuple[int, ...], power: int = -1) -> Tensor:
    """The images (batch, channels, *size) of such a spectrum."""
    run = partial(_images_of, groups=groups, size=size, power=power)
    back = partial(transform, groups=groups, power=power)
    return run(real, pairs) if tracing() else _Isometry.apply(run, back, real, pairs)  # type: ignore[no-untyped-call]


def _spectrum_of(x: Tensor, groups: int, power: int) -> tuple[Tensor, Tensor]:
    forward, _ = _way(tuple(x.shape[2:]))
    real, pairs = forward(x.flatten(0, 1), power)
    batch = (len(x), groups, x.shape[1] // groups)
    rows = real.view(len(real), *batch).transpose(1, 2).flatten(0, 1)
    parts = [part.view(len(part), 2, *batch).permute(0, 3, 2, 1, 4).flatten(3) for part in pairs]
    return rows, torch.cat(parts).flatten(0, 1)


def _images_of(rows: Tensor, paired_rows: Tensor, groups: int, size: tuple[int, ...], power: int) -> Tensor:
    _, backward = _way(size)
    batch = rows.shape[1]
    real = rows.unflatten(0, (-1, groups)).transpose(1, 2).flatten(1)
    pairs = paired_rows.unflatten(0, (len(paired_rows) // groups, groups)).unflatten(3, (2, -1)).permute(0, 3, 2, 1, 4)
    return backward(real, pairs, size, power).view(batch, rows.shape[2] * groups, *size)


def _way(size: tuple[int, ...]) -> tuple[Callable[..., Any], Callable[..., Tensor]]:
    """The transform and its inverse: images (n, *size) <-> (frequencies, n), and some of (pairs, 2, n)."""
    pixels = math.prod(size)
    if pixels <= (_TABLE_PIXELS if len(size) == 2 else _TABLE_OTHERS):
        return _by_table, _from_table
    if len(size) == 2 and max(size) <= _TABLE_SIDE:
        return _by_axes, _from_axes
    return _by_fft, _from_fft


def _by_table(images: Tensor, power: int) -> tuple[Tensor, list[Tensor]]:
    size = tuple(images.shape[1:])
    # Pixels are columns to the product, which so puts the frequencies first.
    values = matmul(transform_table(wave_table, (size,), images, power), images.reshape(-1, math.prod(size)).mT)
    return _split(values, size)


def _split(values: Tensor, size: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
    alone = count_of_real_frequencies(size)
    return values[:alone], [values[alone:].unflatten(0, ((len(values) - alone) // 2, 2))]


def _from_table(real: Tensor, pairs: Tensor, size: tuple[int, ...], power: int) -> Tensor:
    values = torch.cat([real, pairs.flatten(2).flatten(0, 1)])
    return matmul(values.mT, transform_table(wave_table, (size,), values, power))


def _by_axes(images: Tensor, power: int) -> tuple[Tensor, list[Tensor]]:
    """Along rows, then along columns: of the half at whose edges values are still real, and inside complex."""
    count, height, width = images.shape
    values = matmul(transform_table(wave_table, ((width,),), images, power), images.reshape(-1, width).mT)
    ends, left, right = _tables(height, width, images, power)
    edges, inside = values.view(width, count, height).tensor_split([len(ends)])
    inside = inside.view(len(left), 2, count, height)
    real, [pairs] = _split(bmm(ends, edges.mT).transpose(0, 1), (height,))
    middle = baddbmm(bmm(left, inside[:, 0].mT), right, inside[:, 1].mT, beta=1.0)
    # By the last frequency first.
    pairs = pairs.permute(2, 0, 1, 3).flatten(0, 1)
    return real.transpose(0, 1).flatten(0, 1), [middle.view(len(left) * height, 2, count), pairs]


def _from_axes(real: Tensor, pairs: Tensor, size: tuple[int, ...], power: int) -> Tensor:
    (height, width), pairs = size, pairs.flatten(2)
    ends, left, right = _tables(height, width, real, power)
    middle, outer = pairs.tensor_split([len(left) * height])
    middle = middle.reshape(len(left), 2 * height, real.shape[1])
    outer = outer.unflatten(0, (len(ends), len(outer) // len(ends))).flatten(1, 2)
    edges = bmm(torch.cat([real.unflatten(0, (len(ends), -1)), outer], 1).mT, ends)
    inside = torch.stack([bmm(middle.mT, table) for table in (left, right)], 1)
    values = torch.cat([edges, inside.flatten(0, 1)]).flatten(1)
    return matmul(values.mT, transform_table(wave_table, ((width,),), values, power))


def _tables(height: int, width: int, like: Tensor, power: int) -> tuple[Tensor, Tensor, Tensor]:
    """Those along columns, as often as there are edges, and twice as often as there are columns between them."""
    ends = count_of_real_frequencies((width,))
    left, right = transform_table(complex_wave_table, (height,), like, power)
    inside, edges = ((width - ends) // 2, -1, -1), transform_table(wave_table, ((height,),), like, power)
    return edges.expand(ends, -1, -1), left.expand(inside), right.expand(inside)


def _by_fft(images: Tensor, power: int) -> tuple[Tensor, list[Tensor]]:
    size = tuple(images.shape[1:])
    # MKL's transform refuses gradients that repeat one number in memory, as a sum's does, and half precision.
    wide = images.to(torch.promote_types(images.dtype, torch.float32)).contiguous()
    spectrum = torch.fft.rfftn(wide, dim=tuple(range(1, images.dim())), norm="ortho").flatten(1).T
    alone, paired, *_ = places_of_frequencies(size, images.device)
    pairs = torch.view_as_real(spectrum[paired] * math.sqrt(2)).movedim(-1, 1)
    return spectrum[alone].real.to(images.dtype), [pairs.to(images.dtype)]


def _from_fft(real: Tensor, pairs: Tensor, size: tuple[int, ...], power: int) -> Tensor:
    wide = torch.promote_types(real.dtype, torch.float32)
    complex_pairs = torch.complex(*(pairs.flatten(2).to(wide) * math.sqrt(0.5)).unbind(1))
    # All axes but the last where they lie, so that the images are put in order only once.
    axes, spectrum = len(size), half_of(real.to(wide), complex_pairs, size).unflatten(0, (*size[:-1], -1))
    half = torch.fft.ifftn(spectrum, dim=tuple(range(axes - 1)), norm="ortho")
    images = half.movedim(-1, 0).contiguous()
    return torch.fft.irfft(images, n=size[-1], dim=-1, norm="ortho").to(real.dtype)
