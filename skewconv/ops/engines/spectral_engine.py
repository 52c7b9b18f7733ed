"""The spectral engine: with circular padding J is, per frequency, one small skew-Hermitian matrix.

y[p] = sum_t L_t x[p + t] becomes y^(f) = L^(f) x^(f) with the symbol L^(f) = sum_t L_t exp(2 pi i f . t / n).
The images are real: real frequencies have real matrices, and one of each pair of conjugate ones tells the other.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry, convolve, odd_filter
from skewconv.ops.engines import Arranged, Engine, Request
from skewconv.ops.fourier import (
    count_of_real_frequencies,
    half_of,
    kept_table,
    places_of_frequencies,
    symbol_table,
    wave_table,
)
from skewconv.ops.products import bmm, matmul
from skewconv.ops.recurrence import ChannelWidths, MatrixProducts
from skewconv.ops.torch_modes import autocasting, tracing, without_autocast

# Up to this many pixels the transform is a matrix product; beyond, it is an FFT.
MATRIX_PIXELS = 128
_LARGE_IMAGE = 256


class SpectralEngine(Engine):
    name = "spectral"

    def refusal(self, geometry: Geometry, size: tuple[int, ...] | None) -> str:
        if geometry.padding_mode == "circular":
            return ""
        return f"the spectral engine needs padding_mode='circular', got {geometry.padding_mode!r}"

    def advantage(self, request: Request) -> str:
        """Images enough for the symbol, one matrix a frequency, to pay; fewer on small images, which filters outweigh.

        The symbol of nine taps is read ``degree * batch`` times, and saves 40 pixels' worth of a filter's copies each.
        """
        taps = math.prod(request.geometry.kernel)
        reads = request.degree * (request.batch + 40 / request.pixels) * taps / 9
        needed = (4 + request.widths.channels / 16) * (2 if request.pixels > _LARGE_IMAGE else 1)
        if taps == 1 or reads < needed:
            return ""
        return f"a matrix for each frequency is read about {reads:.0f} times, and pays from {needed:.0f} on"

    def arrange(self, x: Tensor, weight: Tensor, request: Request) -> Arranged:
        """States and matrices in real form, in bfloat16 where the images came in it: transforms stay in float32."""
        widths, size = request.widths, request.size
        dtype = request.dtype if request.dtype == torch.bfloat16 else x.dtype
        real, pairs = (part.flatten(0, 1) for part in symbol(weight, request.geometry, size))
        operators = [real.to(dtype), _real_form(pairs).to(dtype)]
        products = [MatrixProducts(widths.times(numbers)) for numbers in (1, 2)]
        if not applies_matrix(len(x), request.degree, widths):
            alone, paired = _by_groups(x, widths.groups)
            states = [alone.to(dtype), _real_rows(paired).to(dtype)]
            return Arranged(states, operators, products, lambda *made: _restored(made, widths.groups, size, x.dtype))
        # p(L^) once, by the same recurrence on the rows of the identity, and then a single product for the batch.
        options: dict[str, Any] = {"dtype": dtype, "device": x.device}
        eyes = [torch.eye(n * widths.inputs, **options)[::n].repeat(len(o), 1, 1) for n, o in enumerate(operators, 1)]
        return Arranged(
            eyes,
            operators,
            products,
            lambda real, pairs: multiply_frequencies(x, (real, _complex_rows(pairs.to(x.dtype))), widths.groups, dtype),
        )


def multiply_frequencies(
    x: Tensor, matrices: Sequence[Tensor], groups: int = 1, dtype: torch.dtype | None = None
) -> Tensor:
    """Images times one matrix a frequency: two of (frequencies * groups, inputs, outputs), real and complex.

    They are multiplied in ``dtype`` (default: that of the images).
    """
    (alone, paired), (real, pairs), dtype = _by_groups(x, groups), matrices, dtype or x.dtype
    factors = (alone, real), (_real_rows(paired), _real_form(pairs.mT).mT)
    made = [bmm(rows.to(dtype), columns.to(dtype)) for rows, columns in factors]
    return _restored(made, groups, tuple(x.shape[2:]), x.dtype)


def _real_form(matrices: Tensor) -> Tensor:
    """a + ib as ((a, -b), (b, a)), real and imaginary parts alternating: (n, rows, columns) -> (n, 2 rows, 2 columns).

    Of real matrices there are products in half precision, and by oneDNN.
    """
    re, im = matrices.real, matrices.imag
    rows = torch.stack([torch.stack([re, -im], -1), torch.stack([im, re], -1)], -3)
    return rows.flatten(-2).flatten(-3, -2)


def _real_rows(states: Tensor) -> Tensor:
    """Complex rows as real ones of twice as many numbers, which their real forms multiply: (n, rows, 2 columns)."""
    return torch.view_as_real(states).flatten(-2)


def _complex_rows(states: Tensor) -> Tensor:
    return torch.view_as_complex(states.unflatten(-1, (-1, 2)))


def _by_groups(x: Tensor, groups: int) -> list[Tensor]:
    """The spectrum of images as rows, two of (frequencies * groups, batch, inputs)."""
    return [part.unflatten(2, (groups, -1)).transpose(1, 2).flatten(0, 1) for part in transform(x)]


def _restored(made: Sequence[Tensor], groups: int, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    real, pairs = (part.to(dtype).unflatten(0, (-1, groups)).transpose(1, 2).flatten(2) for part in made)
    return inverse_transform(real, _complex_rows(pairs), size)


def applies_matrix(batch: int, degree: int, widths: ChannelWidths) -> bool:
    """True where p(L^) is worth building: the recurrence then runs over input channels instead of images."""
    square = degree * widths.channels**2
    return widths.inputs * square + batch * widths.inputs * widths.outputs < batch * square


def symbol(weight: Tensor, geometry: Geometry, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """L^(f) at the distinct frequencies: (m, m / groups, *kernel) -> two of (frequencies, groups, rows, columns)."""
    table = kept_table(symbol_table, (size, geometry.kernel, geometry.dilation), weight)
    values = matmul(table, weight.flatten(2).permute(2, 0, 1).flatten(1))
    shape = (geometry.groups, weight.shape[0] // geometry.groups, weight.shape[1])
    real, pairs = _parts(values, size)
    return real.unflatten(1, shape), pairs.unflatten(1, shape)


def _parts(values: Tensor, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Rows in the order of ``wave_table`` as real ones and complex ones."""
    alone = count_of_real_frequencies(size)
    return values[:alone], torch.complex(values[alone::2], values[alone + 1 :: 2])


class _Isometry(torch.autograd.Function):
    """An orthogonal map: its gradient is its inverse, where PyTorch's own of a transform takes several transforms."""

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


def transform(x: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, channels, *size) -> two of (frequencies, batch, channels), real and complex, with the norm of x."""
    back = partial(inverse_transform, size=tuple(x.shape[2:]))
    return _spectrum_of(x) if tracing() else _Isometry.apply(_spectrum_of, back, x)  # type: ignore[no-untyped-call]


def inverse_transform(real: Tensor, pairs: Tensor, size: tuple[int, ...]) -> Tensor:
    """The images (batch, channels, *size) of such a spectrum."""
    run = partial(_images_of, size=size)
    return run(real, pairs) if tracing() else _Isometry.apply(run, transform, real, pairs)  # type: ignore[no-untyped-call]


def _spectrum_of(x: Tensor) -> tuple[Tensor, Tensor]:
    size = tuple(x.shape[2:])
    if math.prod(size) > MATRIX_PIXELS:
        # MKL's transform refuses gradients that repeat one number in memory, as a sum's does.
        spectrum = (
            torch.fft.rfftn(x.contiguous(), dim=tuple(range(2, x.dim())), norm="ortho").flatten(2).permute(2, 0, 1)
        )
        alone, paired, *_ = places_of_frequencies(size, x.device)
        return spectrum[alone].real.contiguous(), spectrum[paired] * math.sqrt(2)
    pixels = x.flatten(2).permute(2, 0, 1)
    return _parts(matmul(kept_table(wave_table, (size,), x), pixels.flatten(1)).view(pixels.shape), size)


def _images_of(real: Tensor, pairs: Tensor, size: tuple[int, ...]) -> Tensor:
    if math.prod(size) > MATRIX_PIXELS:
        # All axes but the last where they lie, so that the images are put in order only once.
        axes, spectrum = len(size), half_of(real, pairs * math.sqrt(0.5), size).unflatten(0, (*size[:-1], -1))
        half = torch.fft.ifftn(spectrum, dim=tuple(range(axes - 1)), norm="ortho")
        images = half.permute(axes, axes + 1, *range(axes)).contiguous()
        return torch.fft.irfft(images, n=size[-1], dim=-1, norm="ortho")
    values = torch.cat([real, torch.stack([pairs.real, pairs.imag], 1).flatten(0, 1)])
    pixels = matmul(kept_table(wave_table, (size,), real).mT, values.flatten(1)).view_as(values)
    return pixels.permute(1, 2, 0).unflatten(2, size).contiguous()


def circular_convolve(x: Tensor, weight: Tensor) -> Tensor:
    """y[i] = sum_t weight[t] x[i + t] with indices around the image: (n, c, h, w), (o, c, k, l) -> (n, o, h, w)."""
    if _frequencies_are_cheaper(x, weight):
        return convolve_by_frequencies(x, odd_filter(weight))
    return convolve(x, weight, padding_mode="circular")


def convolve_by_frequencies(x: Tensor, weight: Tensor) -> Tensor:
    """The same by one product a frequency, for real images and a filter of odd sizes."""
    size = tuple(x.shape[2:])
    symbols = symbol(weight, Geometry.of(tuple(weight.shape[2:]), "circular", 1, 1), size)
    return multiply_frequencies(x, [each[:, 0].mT for each in symbols])


def _frequencies_are_cheaper(x: Tensor, weight: Tensor) -> bool:
    """On the CPU, where it was measured: with fewer multiply-adds they took less time at every shape that was tried."""
    is_single_or_double = x.dtype in (torch.float32, torch.float64) and not autocasting(x.device)
    if x.device.type != "cpu" or not is_single_or_double or tracing() or len(x) == 0:
        return False
    (n, channels, *size), outputs, taps = x.shape, weight.shape[0], math.prod(weight.shape[2:])
    pixels = math.prod(size)
    transforms = pixels * (n * pixels * (channels + outputs) + taps * channels * outputs)
    # Half as many complex products as there are pixels, of four real ones each.
    return transforms + 2 * pixels * n * channels * outputs < n * pixels * taps * channels * outputs


SPECTRAL_ENGINE = SpectralEngine()
