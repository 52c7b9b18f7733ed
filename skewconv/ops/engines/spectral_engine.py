"""The spectral engine: with circular padding J is, per frequency, one small skew-Hermitian matrix.

y[p] = sum_t L_t x[p + t] becomes y^(f) = L^(f) x^(f) with the symbol L^(f) = sum_t L_t exp(2 pi i f . t / n).
The images are real, so half of the frequencies tell all: the last axis keeps n // 2 + 1 of them.
"""

import math

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.abstract_engine import Arranged, Engine
from skewconv.ops.engines.application import Application
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.engines.costs import Counts, Form, Rates, Request, handed_out_anew
from skewconv.ops.engines.matrix_products import MatrixProducts
from skewconv.ops.fourier import filter_transform_table, inverse_transform_table, kept_table, transform_table

# Up to this many pixels the transform is a matrix product; beyond, it is an FFT.
MATRIX_PIXELS = 256
# PyTorch multiplies matrices in a loop of its own if each product has fewer multiply-adds.
_LOOPED_MULTIPLY_ADDS = 400

FREQUENCIES = Form(
    "frequencies",
    training=Rates(0.000804, 1.44e-07, 1.92e-11, 3.49e-09, 7.34e-10, 1.39e-09),
    evaluation=Rates(0.000292, 5.46e-08, 6.16e-12, 1.44e-09, 2.16e-10, 1.1e-09),
)
FFT = Form(
    "fft",
    training=Rates(0.000902, 3.5e-08, 2.35e-11, 2.49e-09, 6.05e-10, 1.48e-09),
    evaluation=Rates(0.000222, 8.11e-09, 1.41e-11, 6.04e-10, 2.7e-10, 1.95e-10),
)
SMALL_FFT = Form(
    "small fft",
    training=Rates(0.000653, 1.02e-09, 3.24e-10, 4.53e-09, 3.83e-12, 0.0),
    evaluation=Rates(0.000284, 2.13e-10, 2.2e-10, 6.91e-10, 1.04e-12, 0.0),
)


class SpectralEngine(Engine):
    """The recurrence of the series, frequency by frequency."""

    name = "spectral"

    def refusal(self, geometry: Geometry, size: tuple[int, ...] | None) -> str:
        """Every padding but circular."""
        if geometry.padding_mode == "circular":
            return ""
        return f"the spectral engine needs padding_mode='circular', got {geometry.padding_mode!r}"

    def cost(self, request: Request) -> Counts:
        """Transform, a complex product (four real ones) a step and frequency, transform back."""
        widths, n = request.widths, request.degree
        frequencies = math.prod(request.size[:-1]) * (request.size[-1] // 2 + 1)
        whole = applies_matrix(request.batch, n, widths)
        rows = widths.inputs if whole else request.batch
        products = rows * request.multiply_adds_per_tap
        products += whole * request.batch * widths.groups * widths.inputs * widths.outputs
        is_fft = request.pixels > MATRIX_PIXELS
        form = FFT if is_fft else FREQUENCIES
        if is_fft and rows * widths.channels**2 < _LOOPED_MULTIPLY_ADDS:
            form = SMALL_FFT
        images = request.pixels * request.batch * widths.groups * (widths.inputs + widths.outputs)
        state = 2 * frequencies * rows * widths.groups * widths.channels
        table = 2 * frequencies * request.tap_elements
        return Counts(
            form,
            calls=n * frequencies,
            multiply_adds=4 * frequencies * products + (0 if is_fft else 2 * frequencies * images),
            # A transform of n points passes over them as often as the prime factors of n add up to.
            moved=n * state / 2 + images * (1 + is_fft * sum(map(_sum_of_prime_factors, request.size)) / 8),
            stored=table * (1 + n / 2),
            handed_out=handed_out_anew(table) + n * handed_out_anew(state),
        )

    def arrange(self, x: Tensor, weight: Tensor, task: Application) -> Arranged:
        """Frequency by frequency."""
        widths, size = task.widths, tuple(x.shape[2:])
        operator = symbol(weight, task.geometry, size).flatten(0, 1)
        products = MatrixProducts(widths.of_one_group())

        def order(images: Tensor) -> Tensor:
            return _transform(images).unflatten(2, (widths.groups, -1)).transpose(1, 2).flatten(0, 1)

        def restore(y: Tensor) -> Tensor:
            spectrum = y.unflatten(0, (-1, widths.groups)).transpose(1, 2).flatten(2)
            return _inverse_transform(spectrum, size)

        if not applies_matrix(len(x), task.steps.degree, widths):
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


def _sum_of_prime_factors(n: int) -> int:
    for p in range(2, math.isqrt(n) + 1):
        if n % p == 0:
            return p + _sum_of_prime_factors(n // p)
    return n if n > 1 else 0


SPECTRAL_ENGINE = SpectralEngine()
