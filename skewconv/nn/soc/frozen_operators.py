"""The matrices of a skew orthogonal convolution, dense or one for each frequency, in double precision."""

import math

import torch
from torch import Tensor

from skewconv.nn.soc.frozen_series import FrozenSeries
from skewconv.ops.engines.adjoint import apply_recurrence
from skewconv.ops.engines.application import recurrence_of
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.engines.matrix_products import MatrixProducts
from skewconv.ops.engines.spectral_engine import symbol
from skewconv.ops.polynomials import Polynomial

_CHUNK_BYTES = 2**28


def dense_operator(series: FrozenSeries) -> Tensor:
    """The matrix (entries out, entries in) of a linear map, from whichever side has fewer basis vectors."""
    backwards = torch.Size(series.output_shape).numel() < torch.Size(series.input_shape).numel()
    applied = series.adjoint() if backwards else series
    length, width = torch.Size(applied.input_shape).numel(), torch.Size(applied.output_shape).numel()
    chunk = max(1, _CHUNK_BYTES // (series.weight.element_size() * width))
    images: list[Tensor] = []
    for start in range(0, length, chunk):
        count = min(chunk, length - start)
        basis = torch.zeros(count, length, dtype=series.weight.dtype, device=series.weight.device)
        basis[torch.arange(count), torch.arange(start, start + count)] = 1
        images.append(applied.linear(basis.unflatten(1, applied.input_shape)).flatten(1))
    rows = torch.cat(images)
    return rows.conj().resolve_conj() if backwards else rows.T.contiguous()


def spectral_operator(series: FrozenSeries) -> Tensor:
    """p(L^(f)), or p(L^(f))^H if it upsamples: (frequencies * groups, outputs, inputs), complex."""
    groups, channels = series.geometry.groups, series.weight.shape[1]
    widths = ChannelWidths(1, channels, series.read_channels // groups, series.kept_channels // groups)
    symbols = symbol(series.weight, series.geometry, series.image_size).flatten(0, 1)
    identity = torch.eye(widths.inputs, dtype=symbols.dtype, device=symbols.device).repeat(len(symbols), 1, 1)
    steps = recurrence_of(series.polynomial)
    # Rows of the identity go in, so what comes out is the transpose.
    columns = apply_recurrence(identity, symbols, steps, MatrixProducts(widths), recompute=False).mT
    return columns.mH if series.upsamples else columns


def kernel_of(series: FrozenSeries, polynomial: Polynomial, kernel: tuple[int, ...]) -> Tensor:
    """The filter (kept, read, *kernel) of p(J) on a circular image: what one pixel becomes, turned.

    y[i] = sum_t w[t] x[i + t], so that a one at pixel 0 gives y[i] = w[-i]. A kernel that is longer than the image has
    its first and its last tap on one pixel, and the last is left zero. On an axis of four pixels::

        taps t     -2  -1   0   1   2
        pixel -t    2   1   0   3   -
    """
    read, kept, size = series.read_channels, series.kept_channels, series.image_size
    applied = FrozenSeries(
        weight=series.weight,
        polynomial=polynomial,
        geometry=series.geometry,
        stride=(1,) * len(size),
        upsamples=False,
        input_shape=(read, *size),
        output_shape=(kept, *size),
        gain=(0.0, polynomial.gain[1]),
    )
    pixels = torch.zeros(read, read, math.prod(size), dtype=series.weight.dtype)
    pixels[:, :, 0] = torch.eye(read, dtype=series.weight.dtype)
    taps = applied.linear(pixels.unflatten(2, size)).transpose(0, 1)
    for axis, (k, n) in enumerate(zip(kernel, size, strict=True), 2):
        places = (k // 2 - torch.arange(k)) % n
        taps = taps.index_select(axis, places)
        if k > n:
            taps.select(axis, k - 1).zero_()
    return taps.contiguous()
