"""The spectral engine: with circular padding J is, per frequency, one small skew-Hermitian matrix.

y[p] = sum_t L_t x[p + t] becomes y^(f) = L^(f) x^(f) with the symbol L^(f) = sum_t L_t exp(2 pi i f . t / n).
The images are real, so half of the frequencies tell all: the last axis keeps n // 2 + 1 of them.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.abstract_engine import Arranged, Engine, Request
from skewconv.ops.fourier import filter_transform_table, inverse_transform_table, kept_table, transform_table
from skewconv.ops.recurrence import ChannelWidths, MatrixProducts

# Up to this many pixels the transform is a matrix product; beyond, it is an FFT.
MATRIX_PIXELS = 256


class SpectralEngine(Engine):
    """The recurrence of the series, frequency by frequency."""

    name = "spectral"

    def refusal(self, geometry: Geometry, size: tuple[int, ...] | None) -> str:
        """Every padding but circular."""
        if geometry.padding_mode == "circular":
            return ""
        return f"the spectral engine needs padding_mode='circular', got {geometry.padding_mode!r}"

    def advantage(self, request: Request) -> str:
        """Images enough for the symbol, one matrix a frequency, to pay; fewer on small images, which filters outweigh.

        The symbol of nine taps is read ``degree * batch`` times, and saves 40 pixels' worth of a filter's copies each.
        """
        taps = math.prod(request.geometry.kernel)
        reads = request.degree * (request.batch + 40 / request.pixels) * taps / 9
        needed = (4 + request.widths.channels / 16) * (2 if request.pixels > MATRIX_PIXELS else 1)
        if taps == 1 or reads < needed:
            return ""
        return f"a matrix for each frequency is read about {reads:.0f} times, and pays from {needed:.0f} on"

    def arrange(self, x: Tensor, weight: Tensor, request: Request) -> Arranged:
        """Frequency by frequency."""
        widths, size = request.widths, request.size
        operator = symbol(weight, request.geometry, size).flatten(0, 1)
        products = MatrixProducts(replace(widths, groups=1))

        def order(images: Tensor) -> Tensor:
            return _transform(images).unflatten(2, (widths.groups, -1)).transpose(1, 2).flatten(0, 1)

        def restore(y: Tensor) -> Tensor:
            spectrum = y.unflatten(0, (-1, widths.groups)).transpose(1, 2).flatten(2)
            return _inverse_transform(spectrum, size)

        if not applies_matrix(len(x), request.degree, widths):
            return Arranged(order, operator, products, restore)
        # p(L^) once, by the same recurrence on the rows of the identity, and then a single product for the batch.
        eye = torch.eye(widths.inputs, dtype=operator.dtype, device=x.device).repeat(len(operator), 1, 1)
        return Arranged(lambda _: eye, operator, products, lambda matrix: restore(torch.bmm(order(x), matrix)))


def applies_matrix(batch: int, degree: int, widths: ChannelWidths) -> bool:
    """Whether p(L^) is worth building: the recurrence then runs over input channels instead of images."""
    square = degree * widths.channels**2
    return widths.inputs * square + batch * widths.inputs * widths.outputs < batch * square


def symbol(weight: Tensor, geometry: Geometry, size: tuple[int, ...]) -> Tensor:
    """L^(f) on half the frequencies: (m, m / groups, *kernel) -> (frequencies, groups, rows, columns), complex."""
    taps = weight.flatten(2).permute(2, 0, 1).flatten(1)
    phases = kept_table(filter_transform_table, (size, geometry.kernel, geometry.dilation), weight)
    # Whichever is smaller, the filter or its symbol, is made complex.
    if len(phases) > 2 * len(taps):
        waves = torch.complex(*phases.unflatten(0, (2, -1)))
        table = waves @ taps.to(waves.dtype)
    else:
        real, imaginary = (phases @ taps).unflatten(0, (2, -1))
        table = torch.complex(real, imaginary)
    return table.unflatten(1, (geometry.groups, weight.shape[0] // geometry.groups, weight.shape[1]))


def _transform(x: Tensor) -> Tensor:
    """(batch, channels, *size) -> (frequencies, batch, channels)."""
    size = tuple(x.shape[2:])
    if torch.Size(size).numel() > MATRIX_PIXELS:
        return torch.fft.rfftn(x, dim=tuple(range(2, x.dim()))).flatten(2).permute(2, 0, 1).contiguous()
    pixels = x.flatten(2).permute(2, 0, 1)
    table = kept_table(transform_table, (size,), x)
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
    table = kept_table(inverse_transform_table, (size,), spectrum.real)
    flat = torch.cat([spectrum.real.flatten(1), spectrum.imag.flatten(1)])
    pixels = (table @ flat).view(len(table), *spectrum.shape[1:])
    return pixels.permute(1, 2, 0).unflatten(2, size).contiguous()


SPECTRAL_ENGINE = SpectralEngine()
