"""The spectral engine: with circular padding J is, per frequency, one small skew-Hermitian matrix.

y[p] = sum_t L_t x[p + t] becomes y^(f) = L^(f) x^(f) with the symbol L^(f) = sum_t L_t exp(2 pi i f . t / n).
The images are real: real frequencies have real matrices, and one of each pair of conjugate ones tells the other.
Complex rows are kept as real ones, all real parts before all imaginary ones: of real matrices there are products in
half precision and by oneDNN, and memory is copied a row at a time.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry, convolve, odd_filter
from skewconv.ops.engines import Arranged, Engine, Request
from skewconv.ops.fourier import count_of_real_frequencies, kept_table, symbol_table
from skewconv.ops.products import bmm, matmul
from skewconv.ops.recurrence import ChannelWidths, MatrixProducts
from skewconv.ops.spectrum import inverse_transform, transform
from skewconv.ops.torch_modes import autocasting, tracing

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

    def working_dtype(self, request: Request) -> torch.dtype:
        """bfloat16 where it was asked for: sums over pixels are rounded once, and the symbol is made in float32."""
        return request.dtype if request.dtype == torch.bfloat16 else super().working_dtype(request)

    def arrange(self, x: Tensor, weight: Tensor, request: Request) -> Arranged:
        widths, size, dtype = request.widths, request.size, x.dtype
        exact = weight.float() if dtype == torch.bfloat16 else weight
        # States are rows, which the transposes of operators multiply: those of real forms are real forms of conjugates.
        real, pairs = (part.flatten(0, 1) for part in _symbol(exact, request.geometry, size, -1))
        operators = [real.to(dtype), _real_form(pairs, dtype)]
        if not applies_matrix(len(x), request.degree, widths):
            products = [MatrixProducts(replace(widths, groups=parts)) for parts in (1, 2)]
            restore = partial(inverse_transform, groups=widths.groups, size=size)
            return Arranged(transform(x, widths.groups), operators, products, restore)
        # p(L^) once, by the same recurrence on rows of the identity, and then a single product for the batch. From the
        # side of fewer channels: its rows are those of p(L^H), the adjoint.
        upward = widths.outputs < widths.inputs
        few = min(widths.inputs, widths.outputs)
        if upward:
            operators, widths = [operator.mT for operator in operators], widths.adjoint()
        products = [MatrixProducts(replace(widths, groups=parts)) for parts in (1, 2)]
        options: dict[str, Any] = {"dtype": dtype, "device": x.device}
        eyes = [torch.eye(few, n * few, **options).repeat(len(o), 1, 1) for n, o in enumerate(operators, 1)]

        def restore_product(real: Tensor, pairs: Tensor) -> Tensor:
            matrices = real, _real_form(pairs.unflatten(2, (2, -1)).transpose(1, 2), dtype)
            return _multiplied(x, [each.mT for each in matrices] if upward else matrices, widths.groups)

        return Arranged(eyes, operators, products, restore_product)


def multiply_frequencies(x: Tensor, matrices: Sequence[Tensor], groups: int = 1) -> Tensor:
    """Images times one matrix a frequency: two of (frequencies * groups, inputs, outputs), real and complex.

    They are multiplied in the dtype of the images.
    """
    real, pairs = matrices
    form = _real_form(torch.stack([pairs.real, pairs.imag], 1), x.dtype)
    return _multiplied(x, (real.to(x.dtype), form), groups)


def _multiplied(x: Tensor, matrices: Sequence[Tensor], groups: int) -> Tensor:
    """The same with matrices in real form, all in the dtype of the images."""
    made = [bmm(rows, matrix) for rows, matrix in zip(transform(x, groups), matrices, strict=True)]
    return inverse_transform(*made, groups=groups, size=tuple(x.shape[2:]))


def _real_form(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """((a, b), (-b, a)), which multiplies rows as a + ib does: (n, 2, rows, columns) -> (n, 2 rows, 2 columns)."""
    if tracing():
        re, im = parts.to(dtype).unbind(1)
        return torch.cat([torch.cat([re, im], 2), torch.cat([-im, re], 2)], 1)
    made: Tensor = _RealForm.apply(parts, dtype)  # type: ignore[no-untyped-call]
    return made


class _RealForm(torch.autograd.Function):
    """Written block by block, where joining copies everything twice."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, dtype: torch.dtype) -> Tensor:
        (n, _, rows, columns), (re, im) = parts.shape, parts.unbind(1)
        ctx.dtype = parts.dtype
        blocks = torch.empty(n, 2, rows, 2, columns, dtype=dtype, device=parts.device)
        for block, part in ((blocks[:, 0, :, 0], re), (blocks[:, 1, :, 1], re), (blocks[:, 0, :, 1], im)):
            block.copy_(part)
        torch.neg(blocks[:, 0, :, 1], out=blocks[:, 1, :, 0])
        return blocks.view(n, 2 * rows, 2 * columns)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        n, rows, columns = grads[0].shape
        blocks = grads[0].to(ctx.dtype).reshape(n, 2, rows // 2, 2, columns // 2)
        re, im = blocks[:, 0, :, 0] + blocks[:, 1, :, 1], blocks[:, 0, :, 1] - blocks[:, 1, :, 0]
        return torch.stack([re, im], 1), None


def applies_matrix(batch: int, degree: int, widths: ChannelWidths) -> bool:
    """True where p(L^) is worth building: the recurrence then runs over the fewer channels instead of images."""
    square = degree * widths.channels**2
    few = min(widths.inputs, widths.outputs)
    return few * square + batch * widths.inputs * widths.outputs < batch * square


def symbol(weight: Tensor, geometry: Geometry, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """L^(f) at the distinct frequencies: (m, m / groups, *kernel) -> two of (frequencies, groups, rows, columns)."""
    real, pairs = _symbol(weight, geometry, size, 1)
    return real, torch.complex(*pairs.unbind(2))


def _symbol(weight: Tensor, geometry: Geometry, size: tuple[int, ...], sign: int) -> tuple[Tensor, Tensor]:
    """The same, or with sign -1 its conjugate: (frequencies, groups, rows, columns), (.., groups, 2, rows, columns)."""
    table = kept_table(symbol_table, (size, geometry.kernel, geometry.dilation, sign), weight)
    values = matmul(table, weight.flatten(2).permute(2, 0, 1).flatten(1))
    shape = (geometry.groups, weight.shape[0] // geometry.groups, weight.shape[1])
    alone = count_of_real_frequencies(size)
    real, pairs = values.split([alone, len(values) - alone])
    count = len(pairs) // 2
    return real.unflatten(1, shape), pairs.view(count, 2, *shape).transpose(1, 2)


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
