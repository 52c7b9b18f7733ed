"""What a skew orthogonal convolution becomes: itself, frequencies, a matrix, or a shorter chain."""

import math
from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from skewconv.nn.gains import rounded_with_gain, spectral_layer, with_gain
from skewconv.nn.primitives import Choice, Dense, SkewExponential
from skewconv.ops.convolution_exponential import plan
from skewconv.ops.engines.spectral_engine import symbol
from skewconv.ops.fourier import distinct_frequencies, transform_sides
from skewconv.ops.polynomials import Polynomial, non_expansive_polynomial, recurrence_of
from skewconv.ops.recurrence import ChannelWidths, MatrixProducts, apply_recurrence
from skewconv.ops.series import DEFAULT_SERIES

if TYPE_CHECKING:
    from skewconv.nn.soc.skew_conv import SkewConv

Shape = tuple[int, ...]
# A matrix larger than this is read from memory more slowly than the convolutions it replaces are computed.
_MATRIX_BYTES = 2**28
# A matrix is made to this share of the tolerance: the rest is left to the layers that keep their convolutions.
_MATRIX_SHARE = 0.1
# A dense matrix product reaches about half of the speed of a large convolution.
_PRODUCT_COST = 2.0
# Another proof of the same norm, by other means, shall find it in the interval of the polynomial too.
_ROOM = 1 + 1e-9
_LEAST_INTERVAL = 1e-6
# A matrix is made in the precision of the layer where the errors of its products are as far below its tolerance.
_MANY_ROUNDINGS = 128
# States of this size stay in the cache.
_CHUNK_BYTES = 2**23


def lowered_exactly(layer: "SkewConv", input_shape: Shape, dtype: torch.dtype | None = None) -> SkewExponential:
    """The very map of eval mode on inputs of one shape; in a wider precision on the CPU if a dtype is given."""
    weight, polynomial = layer.weight.detach(), layer.polynomial()
    series = SkewExponential(
        weight=weight if dtype is None else weight.cpu().to(dtype),
        polynomial=polynomial,
        geometry=layer.geometry,
        stride=layer.stride,
        upsamples=layer.transposed,
        input_shape=input_shape,
        output_shape=_shape_made(layer, input_shape),
        bias=layer.bias if dtype is None else None,
    )
    low, high = polynomial.gain
    return with_gain(series, (low if series.is_injective() else 0.0, high))


def _shape_made(layer: "SkewConv", input_shape: Shape) -> Shape:
    size = layer.size_met(input_shape)
    stride = layer.stride if layer.transposed else (1,) * len(size)
    return (layer.out_channels, *(n * s for n, s in zip(size, stride, strict=True)))


def skew_conv_choices(layer: "SkewConv", input_shape: Shape, tol: float) -> Iterator[Choice]:
    """What the layer can become on images of one size, the one that is expected to be fastest first."""
    weight, injective = layer.weight.detach(), layer.gain_bounds()[0] > 0
    output_shape = _shape_made(layer, input_shape)
    common: dict[str, Any] = {"input_shape": input_shape, "output_shape": output_shape}
    options: dict[str, Any] = {"geometry": layer.geometry, "stride": layer.stride, "upsamples": layer.transposed}
    own = lowered_exactly(layer, input_shape, torch.complex128 if layer.is_complex else torch.float64)
    common["bias"] = layer.bias
    circular = layer.padding_mode == "circular" and not layer.is_complex
    if circular:
        yield _frequencies(layer, own, tol, injective, common)
    norm = layer.norm_at(own.image_size)
    shorter = _shorter(layer, norm, tol)
    gain = (shorter.gain[0] if injective else 0.0, shorter.gain[1])
    steps = shorter.degree - 0.5 * (layer.read_channels != layer.kept_channels)

    def series() -> SkewExponential:
        return with_gain(SkewExponential(weight=weight, polynomial=shorter, **common, **options), gain)

    convolutions = steps * math.prod(own.image_size) * weight.numel()
    # Files that cannot slice a filter hold the first and the last convolution's own.
    cut = sum(count for count in (layer.read_channels, layer.kept_channels) if count < len(weight))
    stored = weight.numel() * (len(weight) + cut) // len(weight)
    others = [Choice("chain", stored, convolutions, series)]
    entries = math.prod(input_shape) * math.prod(output_shape)
    if not circular and entries * weight.element_size() <= _MATRIX_BYTES:

        def dense() -> Dense:
            own.polynomial = _shorter(layer, norm, _MATRIX_SHARE * tol)
            if _MATRIX_SHARE * tol >= _MANY_ROUNDINGS * torch.finfo(weight.dtype).eps:
                own.weight = weight.cpu()
                own.engine = _fastest_engine(own)
            rounded, proven = rounded_with_gain(dense_operator(own), weight.dtype, own.polynomial.gain, tol, injective)
            return with_gain(Dense(weight=rounded.to(weight.device), **common), proven)

        others.append(Choice("matrix", entries, _PRODUCT_COST * entries, dense))
    yield from sorted(others, key=lambda choice: choice.cost)


def _frequencies(
    layer: "SkewConv", own: SkewExponential, tol: float, injective: bool, common: dict[str, Any]
) -> Choice:
    options = {**common, "groups": layer.groups, "stride": layer.stride, "upsamples": layer.transposed}
    options |= {"gain": own.polynomial.gain, "tol": tol, "injective": injective, "device": layer.centre.device}
    read, kept, pixels = layer.read_channels, layer.kept_channels, math.prod(own.image_size)
    alone, paired = distinct_frequencies(own.image_size)
    numbers = (len(alone) + 4 * len(paired)) * read * kept // layer.groups
    height, width = transform_sides(own.image_size)
    # Complex columns are twice as high as real ones.
    column = height if width == 1 else 2 * height
    cost = _PRODUCT_COST * (numbers + pixels * (width + column) * (read + kept))

    def build() -> Any:
        return spectral_layer(*spectral_operator(own), layer.weight.dtype, own.image_size, **options)

    return Choice("frequencies", numbers + height**2 + column**2 + width**2, cost, build)


def _shorter(layer: "SkewConv", norm: float, tol: float) -> Polynomial:
    """The shortest polynomial within ``tol`` of the layer's own, for a norm at this size; or the layer's own."""
    own = layer.polynomial()
    if own.truncation_error >= tol:
        return own
    rho = min(max(norm * _ROOM, _LEAST_INTERVAL), own.norm_bound)
    shorter = non_expansive_polynomial(rho, tol - own.truncation_error, DEFAULT_SERIES)
    return shorter if shorter.degree < own.degree else own


def _fastest_engine(series: SkewExponential) -> str:
    """The engine for many images, whatever its rounding error."""
    g, images = series.geometry, (256, series.kept_channels, *series.image_size)
    options: dict[str, Any] = {"padding_mode": g.padding_mode, "dilation": g.dilation, "groups": g.groups}
    dtype, degree = series.weight.dtype, series.polynomial.degree
    return plan(images, series.weight.shape, degree=degree, dtype=dtype, truncation_error=1.0, **options).engine


def dense_operator(series: SkewExponential) -> Tensor:
    """The matrix (entries out, entries in) of a linear map, from whichever side has fewer basis vectors."""
    backwards = math.prod(series.output_shape) < math.prod(series.input_shape)
    applied = copy(series)
    if backwards:
        applied.upsamples = not series.upsamples
        applied.input_shape, applied.output_shape = series.output_shape, series.input_shape
    length, width = math.prod(applied.input_shape), math.prod(applied.output_shape)
    chunk = max(1, _CHUNK_BYTES // (series.weight.element_size() * width))
    images: list[Tensor] = []
    for start in range(0, length, chunk):
        count = min(chunk, length - start)
        basis = torch.zeros(count, length, dtype=series.weight.dtype, device=series.weight.device)
        basis[torch.arange(count), torch.arange(start, start + count)] = 1
        images.append(applied.linear(basis.unflatten(1, applied.input_shape)).flatten(1))
    rows = torch.cat(images)
    return rows.conj().resolve_conj() if backwards else rows.T.contiguous()


def spectral_operator(series: SkewExponential) -> tuple[Tensor, Tensor]:
    """p(L^(f)), or p(L^(f))^H if it upsamples, real and complex: two of (frequencies * groups, outputs, inputs)."""
    groups, channels = series.geometry.groups, series.weight.shape[1]
    read, kept = series.read_channels // groups, series.kept_channels // groups
    # From the side of fewer channels: p(J)^H = p(-J) where those are the ones that are kept.
    few, many, adjoint = min(read, kept), max(read, kept), kept < read
    steps = recurrence_of(series.polynomial, inverse=adjoint)
    products = MatrixProducts(ChannelWidths(1, channels, few, many))

    def exponential(matrices: Tensor) -> Tensor:
        identity = torch.eye(few, dtype=matrices.dtype, device=matrices.device).repeat(len(matrices), 1, 1)
        # Rows of the identity go in, so what comes out is the transpose.
        columns = apply_recurrence(identity, matrices, steps, products).mT
        return columns.mH if adjoint != series.upsamples else columns

    real, pairs = symbol(series.weight, series.geometry, series.image_size)
    return exponential(real.flatten(0, 1)), exponential(pairs.flatten(0, 1))
