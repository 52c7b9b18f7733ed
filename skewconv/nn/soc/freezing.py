"""Which frozen forms a skew orthogonal convolution can take: frequencies, a matrix, a larger kernel, a chain."""

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from skewconv.nn.frozen_layers import FrozenChoice, FrozenConv, FrozenDense, frozen_spectral, rounded_with_gain
from skewconv.nn.protocol import Shape
from skewconv.nn.soc.frozen_operators import dense_operator, kernel_of, spectral_operator
from skewconv.nn.soc.frozen_series import FrozenSeries
from skewconv.ops.convolution import Geometry
from skewconv.ops.norms import norm_upper_bound_at
from skewconv.ops.polynomials import Polynomial, non_expansive_polynomial
from skewconv.ops.series import DEFAULT_SERIES
from skewconv.rigor import FEW_ROUNDINGS_UP

if TYPE_CHECKING:
    from skewconv.nn.soc.skew_conv import SkewConv

# A matrix larger than this is read from memory more slowly than the convolutions it replaces are computed.
_MATRIX_BYTES = 2**28
# A matrix is made to this share of the tolerance: the rest is left to the layers that keep their convolutions.
_MATRIX_SHARE = 0.1
# A dense matrix product reaches about half of the speed of a large convolution.
_PRODUCT_COST = 2.0
# Another proof of the same norm, by other means, shall find it in the interval of the polynomial too.
_ROOM = 1 + 1e-9
_LEAST_INTERVAL = 1e-6


def skew_conv_choices(layer: "SkewConv", input_shape: Shape, output_shape: Shape, tol: float) -> Iterator[FrozenChoice]:
    """What the layer can become on images of one size, the one that is expected to be fastest first."""
    weight, injective = layer.weight.detach(), layer.gain_bounds()[0] > 0
    common: dict[str, Any] = {"input_shape": input_shape, "output_shape": output_shape}
    options: dict[str, Any] = {"geometry": layer.geometry, "stride": layer.stride, "upsamples": layer.transposed}
    double = torch.complex128 if layer.is_complex else torch.float64
    polynomial = layer.polynomial()
    own = FrozenSeries(
        weight=weight.cpu().to(double), polynomial=polynomial, gain=layer.gain_bounds(), **common, **options
    )
    common["bias"] = layer.bias
    circular = layer.padding_mode == "circular" and not layer.is_complex
    if circular:
        yield _frequencies(layer, own, tol, injective, common)
    shorter = _shorter(layer, weight, own.image_size, tol)
    gain = (shorter.gain[0] if injective else 0.0, shorter.gain[1])
    steps = shorter.degree - 0.5 * (layer.read_channels != layer.kept_channels)
    series = partial(FrozenSeries, weight=weight, polynomial=shorter, gain=gain, **common, **options)
    convolutions = steps * math.prod(own.image_size) * weight.numel()
    # Files that cannot slice a filter hold the first and the last convolution's own.
    cut = sum(count for count in (layer.read_channels, layer.kept_channels) if count < len(weight))
    stored = weight.numel() * (len(weight) + cut) // len(weight)
    others = [FrozenChoice("chain", stored, convolutions, series)]
    entries = math.prod(input_shape) * math.prod(output_shape)
    if not circular and entries * weight.element_size() <= _MATRIX_BYTES:

        def dense() -> FrozenDense:
            own.polynomial = _shorter(layer, weight, own.image_size, _MATRIX_SHARE * tol)
            rounded, proven = rounded_with_gain(dense_operator(own), weight.dtype, own.polynomial.gain, tol, injective)
            return FrozenDense(weight=rounded.to(weight.device), gain=proven, **common)

        others.append(FrozenChoice("matrix", entries, _PRODUCT_COST * entries, dense))
    longer = _shorter(layer, weight, own.image_size, _MATRIX_SHARE * tol) if circular else shorter
    if circular and (kernel := _larger_kernel(own, longer)) is not None:
        numbers = layer.read_channels * layer.kept_channels * math.prod(kernel)
        build = partial(_convolution, own, longer, kernel, weight, common)
        others.append(FrozenChoice("convolution", numbers, numbers * math.prod(own.image_size), build))
    yield from sorted(others, key=lambda choice: choice.cost)


def _frequencies(
    layer: "SkewConv", own: FrozenSeries, tol: float, injective: bool, common: dict[str, Any]
) -> FrozenChoice:
    options = {**common, "groups": layer.groups, "stride": layer.stride, "upsamples": layer.transposed}
    options |= {"gain": own.polynomial.gain, "tol": tol, "injective": injective, "device": layer.centre.device}
    read, kept, pixels = layer.read_channels, layer.kept_channels, math.prod(own.image_size)
    waves = math.prod((*own.image_size[:-1], own.image_size[-1] // 2 + 1))
    numbers = 4 * waves * read * kept // layer.groups
    tables = 2 * waves * pixels
    cost = _PRODUCT_COST * (numbers + tables * (read + kept))

    def build() -> Any:
        return frozen_spectral(spectral_operator(own), layer.weight.dtype, own.image_size, **options)

    return FrozenChoice("frequencies", numbers + 2 * tables, cost, build)


def _larger_kernel(own: FrozenSeries, polynomial: Polynomial) -> tuple[int, ...] | None:
    """The odd sizes of one kernel for the whole polynomial, which wraps around a small image; None for groups."""
    geometry = own.geometry
    if geometry.groups > 1 or geometry.axes != 2 or own.upsamples:
        return None
    whole = [2 * r * polynomial.degree + 1 for r in geometry.reach]
    return tuple(min(k, n + 1 - n % 2) for k, n in zip(whole, own.image_size, strict=True))


def _convolution(
    own: FrozenSeries, polynomial: Polynomial, kernel: tuple[int, ...], weight: Tensor, common: dict[str, Any]
) -> FrozenConv:
    """The kernel of the polynomial, divided by its own gain where that is above one."""
    exact = kernel_of(own, polynomial, kernel)
    layer, divisor = None, 1.0
    for _ in range(3):
        rounded = (exact / divisor).to(weight.dtype).to(weight.device)
        layer = FrozenConv(weight=rounded, stride=own.stride, gain=(0.0, 1.0), **common)
        layer.gain = layer.proven_gain()
        # A polynomial that exceeds one by more than rounding does so because the user fixed its degree.
        if layer.gain[1] <= 1 or polynomial.gain[1] > 1:
            break
        divisor *= layer.gain[1] * FEW_ROUNDINGS_UP
    assert layer is not None
    return layer


def _proven_interval(weight: Tensor, size: Shape, geometry: Geometry) -> float:
    """A number that ||J|| does not exceed on images of this size, with room for a second proof."""
    g = geometry
    bound = norm_upper_bound_at(weight, tuple(size), g.padding_mode, dilation=g.dilation, groups=g.groups)
    return max(bound * _ROOM, _LEAST_INTERVAL)


def _shorter(layer: "SkewConv", weight: Tensor, size: Shape, tol: float) -> Polynomial:
    """The shortest polynomial within ``tol`` of the layer's own, from the norm at this size; or the layer's own."""
    own = layer.polynomial()
    if own.truncation_error >= tol:
        return own
    rho = min(_proven_interval(weight, size, layer.geometry), own.norm_bound)
    shorter = non_expansive_polynomial(rho, tol - own.truncation_error, DEFAULT_SERIES)
    return shorter if shorter.degree < own.degree else own
