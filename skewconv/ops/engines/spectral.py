"""The spectral engine: with circular padding J is, per frequency, one small skew-Hermitian matrix.

y[p] = sum_t L_t x[p + t] becomes y^(f) = L^(f) x^(f) with the symbol L^(f) = sum_t L_t exp(2 pi i f . t / n).
The images are real, so half of the frequencies tell all: the last axis keeps n // 2 + 1 of them.
"""

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.adjoint import run, tracing
from skewconv.ops.engines.channels import Cut
from skewconv.ops.engines.matrices import Matrices
from skewconv.ops.engines.operator import Operator, exponential
from skewconv.ops.engines.steps import steps_of
from skewconv.ops.polynomials import Polynomial

# Up to this many pixels the transform is a matrix product; beyond, it is an FFT.
MATRIX_PIXELS = 256


def refusal(geometry: Geometry) -> str:
    """Why the engine cannot serve this geometry, or an empty string."""
    if geometry.padding_mode == "circular":
        return ""
    return f"the spectral engine needs padding_mode='circular', got {geometry.padding_mode!r}"


def apply(
    x: Tensor, weight: Tensor, polynomial: Polynomial, geometry: Geometry, cut: Cut, *, inverse: bool, recompute: bool
) -> Tensor:
    """p(J) x, or p(-J) x, by frequencies: (batch, groups * inputs, *size) -> (batch, groups * outputs, *size)."""
    steps = steps_of(polynomial, inverse=inverse, recompute=recompute)
    size, batch = tuple(x.shape[2:]), x.shape[0]
    operator = symbol(weight, geometry, size).flatten(0, 1)
    rows = _transform(x).unflatten(2, (cut.groups, -1)).transpose(1, 2).flatten(0, 1)
    action = Matrices(Cut(1, cut.channels, cut.inputs, cut.outputs))
    if applies_matrix(batch, steps.degree, cut):
        # p(L^) once, by the same recurrence on the rows of the identity, and then a single product for the batch.
        eye = torch.eye(cut.inputs, dtype=rows.dtype, device=rows.device).repeat(len(rows), 1, 1)
        y = torch.bmm(rows, run(eye, operator, steps, action, recompute=recompute))
    else:
        y = run(rows, operator, steps, action, recompute=recompute)
    spectrum = y.unflatten(0, (-1, cut.groups)).transpose(1, 2).flatten(2)
    return _inverse_transform(spectrum, size)


def applies_matrix(batch: int, degree: int, cut: Cut) -> bool:
    """Whether p(L^) is worth building: the recurrence then runs over input channels instead of images."""
    square = degree * cut.channels**2
    return cut.inputs * square + batch * cut.inputs * cut.outputs < batch * square


def symbol(weight: Tensor, geometry: Geometry, size: tuple[int, ...]) -> Tensor:
    """L^(f) on half the frequencies: (m, m / groups, *kernel) -> (frequencies, groups, rows, columns), complex."""
    taps = weight.flatten(2).permute(2, 0, 1).flatten(1)
    phases = _table("phases", size, geometry, weight)
    # Whichever is smaller, the filter or its symbol, is made complex.
    if len(phases) > len(taps):
        table = phases @ taps.to(phases.dtype)
    else:
        real, imaginary = (torch.cat([phases.real, phases.imag]) @ taps).unflatten(0, (2, -1))
        table = torch.complex(real, imaginary)
    return table.unflatten(1, (geometry.groups, weight.shape[0] // geometry.groups, weight.shape[1]))


def _transform(x: Tensor) -> Tensor:
    """(batch, channels, *size) -> (frequencies, batch, channels)."""
    size = tuple(x.shape[2:])
    if torch.Size(size).numel() > MATRIX_PIXELS:
        return torch.fft.rfftn(x, dim=tuple(range(2, x.dim()))).flatten(2).permute(2, 0, 1).contiguous()
    pixels = x.flatten(2).permute(2, 0, 1)
    table = _table("forward", size, None, x)
    real, imaginary = (table @ pixels.flatten(1)).unflatten(0, (2, -1))
    return torch.complex(real, imaginary).view(len(real), *pixels.shape[1:])


def _inverse_transform(spectrum: Tensor, size: tuple[int, ...]) -> Tensor:
    """(frequencies, batch, channels) -> (batch, channels, *size)."""
    if torch.Size(size).numel() > MATRIX_PIXELS:
        # All axes but the last where they lie, so that the images are put in order only once.
        axes = len(size)
        half = torch.fft.ifftn(spectrum.unflatten(0, (*size[:-1], -1)), dim=tuple(range(axes - 1)))
        images = half.permute(axes, axes + 1, *range(axes)).contiguous()
        return torch.fft.irfft(images, n=size[-1], dim=-1)
    table = _table("inverse", size, None, spectrum.real)
    flat = torch.cat([spectrum.real.flatten(1), spectrum.imag.flatten(1)])
    pixels = (table @ flat).view(len(table), *spectrum.shape[1:])
    return pixels.permute(1, 2, 0).unflatten(2, size).contiguous()


_Kind = Literal["phases", "forward", "inverse"]


def _table(kind: _Kind, size: tuple[int, ...], geometry: Geometry | None, like: Tensor) -> Tensor:
    build = new_table if tracing() else _cached_table
    return build(kind, size, geometry, like.dtype, like.device)


@lru_cache(maxsize=64)
def _cached_table(
    kind: _Kind, size: tuple[int, ...], geometry: Geometry | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    with torch.inference_mode(False):
        return new_table(kind, size, geometry, dtype, device)


def new_table(
    kind: _Kind, size: tuple[int, ...], geometry: Geometry | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The waves of a filter's taps, complex; or of a transform, real parts over imaginary ones (inverse: beside)."""
    frequencies = _grid([torch.arange(n) for n in (*size[:-1], size[-1] // 2 + 1)])
    if geometry is not None:
        axes = zip(geometry.kernel, geometry.dilation, strict=True)
        cos, sin = _waves(frequencies, _grid([d * (torch.arange(k) - k // 2) for k, d in axes]), size)
        return torch.complex(cos.to(device, dtype), sin.to(device, dtype))
    cos, sin = _waves(frequencies, _grid([torch.arange(n) for n in size]), size)
    if kind == "forward":
        return torch.cat([cos, -sin]).to(device, dtype)
    # A frequency that is missing from the half kept is the conjugate of one that is there, which counts twice.
    alone = (frequencies[:, -1:] == 0) | (2 * frequencies[:, -1:] == size[-1])
    share = torch.where(alone, 1.0, 2.0).double() / math.prod(size)
    return torch.cat([share * cos, -share * sin]).T.contiguous().to(device, dtype)


def _grid(axes: list[Tensor]) -> Tensor:
    """Every combination of one entry from each axis, in row-major order: (combinations, axes)."""
    return torch.cartesian_prod(*axes).view(-1, len(axes))


def _waves(frequencies: Tensor, positions: Tensor, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi f . p / n, (frequencies, positions), from whole turns taken off exactly."""
    turns = torch.zeros(len(frequencies), len(positions), dtype=torch.float64)
    for axis, n in enumerate(size):
        turns += torch.outer(frequencies[:, axis], positions[:, axis]).remainder(n).double() / n
    angles = 2 * math.pi * turns
    # At half and quarter turns exactly zero: a remainder of 1e-16 would only breed subnormal numbers, which are slow.
    cos, sin = (wave.masked_fill(wave.abs() < 1e-12, 0.0) for wave in (angles.cos(), angles.sin()))
    return cos, sin


def operator(weight: Tensor, size: tuple[int, ...], geometry: Geometry, cut: Cut) -> Operator:
    """exp of the symbol itself, in float64: (frequencies * groups, outputs, inputs), complex.

    Args:
        weight: (m, m / groups, *kernel), a real skew filter.
        size: the image's spatial sizes.
    """
    with torch.no_grad():
        full = symbol(weight.detach().double(), geometry, size).flatten(0, 1)
        # Rounding leaves the symbol skew-Hermitian up to the last bits only; its exponential should be unitary.
        return exponential((full - full.mH) / 2, cut.outputs, cut.inputs)
