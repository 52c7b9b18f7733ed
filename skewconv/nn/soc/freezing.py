"""Which frozen form a skew orthogonal convolution takes: frequencies, a matrix, or fewer convolutions."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from skewconv.nn.frozen_layers import FrozenDense, FrozenLayer, frozen_spectral, rounded_with_gain
from skewconv.nn.protocol import Shape
from skewconv.nn.soc.frozen_operators import dense_operator, spectral_operator
from skewconv.nn.soc.frozen_series import FrozenSeries
from skewconv.ops.norms import norm_upper_bound_at
from skewconv.ops.polynomials import Polynomial, non_expansive_polynomial
from skewconv.ops.series import DEFAULT_SERIES

if TYPE_CHECKING:
    from skewconv.nn.soc.skew_conv import SkewConv

# A matrix larger than this is read from memory more slowly than the convolutions it replaces are computed.
_MATRIX_BYTES = 2**28
# Another proof of the same norm, by other means, shall find it in the interval of the polynomial too.
_ROOM = 1 + 1e-9
# A matrix is made to this share of the tolerance: the rest is left to the layers that keep their convolutions.
_MATRIX_SHARE = 0.1
# A dense matrix product reaches about half of the speed of a large convolution.
_PRODUCT_COST = 2.0


def frozen_skew_conv(layer: "SkewConv", input_shape: Shape, output_shape: Shape, tol: float) -> FrozenLayer:
    """Circular padding: one product a frequency. Zeros: a matrix where that is faster, else the convolutions."""
    weight, injective = layer.weight.detach(), layer.gain_bounds()[0] > 0
    common: dict[str, Any] = {"input_shape": input_shape, "output_shape": output_shape}
    options: dict[str, Any] = {"geometry": layer.geometry, "stride": layer.stride, "upsamples": layer.transposed}
    double = torch.complex128 if layer.is_complex else torch.float64
    own = FrozenSeries(
        weight=weight.cpu().to(double), polynomial=layer.polynomial(), gain=layer.gain_bounds(), **common, **options
    )
    common["bias"] = layer.bias
    if layer.padding_mode == "circular" and not layer.is_complex:
        common |= {"groups": layer.groups, "stride": layer.stride, "upsamples": layer.transposed}
        common |= {"gain": own.polynomial.gain, "tol": tol, "injective": injective, "device": layer.centre.device}
        return frozen_spectral(spectral_operator(own), weight.dtype, own.image_size, **common)
    shorter = _shorter(layer, weight, own.image_size, tol)
    entries = math.prod(input_shape) * math.prod(output_shape)
    steps = shorter.degree - 0.5 * (layer.read_channels != layer.kept_channels)
    convolutions = steps * math.prod(own.image_size) * weight.numel()
    if entries * weight.element_size() <= _MATRIX_BYTES and _PRODUCT_COST * entries <= convolutions:
        own.polynomial = _shorter(layer, weight, own.image_size, _MATRIX_SHARE * tol)
        rounded, gain = rounded_with_gain(dense_operator(own), weight.dtype, own.polynomial.gain, tol, injective)
        return FrozenDense(weight=rounded.to(weight.device), gain=gain, **common)
    gain = (shorter.gain[0] if injective else 0.0, shorter.gain[1])
    return FrozenSeries(weight=weight, polynomial=shorter, gain=gain, **common, **options)


def _shorter(layer: "SkewConv", weight: Tensor, size: Shape, tol: float) -> Polynomial:
    """The shortest polynomial within ``tol`` of the layer's own, from the norm at this size; or the layer's own."""
    own = layer.polynomial()
    if own.truncation_error >= tol:
        return own
    bound = norm_upper_bound_at(weight, size, layer.padding_mode, dilation=layer.dilation, groups=layer.groups)
    rho = min(max(bound * _ROOM, 1e-6), own.norm_bound)
    shorter = non_expansive_polynomial(rho, tol - own.truncation_error, DEFAULT_SERIES)
    return shorter if shorter.degree < own.degree else own
