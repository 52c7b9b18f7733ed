"""A frozen layer as one convolution."""

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.choices import PaddingMode
from skewconv.nn.frozen_layers.base import FrozenLinearMap
from skewconv.nn.frozen_layers.proven_gain import gain_around, gain_on_image
from skewconv.nn.plain_parts import conv_module, with_downsampling
from skewconv.nn.protocol import Float64Program, Growth, Shape
from skewconv.nn.protocol.products import product_error
from skewconv.nn.protocol.stored import storable
from skewconv.ops.convolution import Geometry
from skewconv.ops.downsample import invertible_downsample
from skewconv.ops.filters import odd_filter
from skewconv.ops.gram_row_sums import scaled_gram_upper_bound
from skewconv.ops.norms import norm_upper_bound
from skewconv.rigor import (
    absolute_norm_upper_bound,
    filter_gram_defect_upper_bound,
    in_double,
    ldexp_up,
    power_of_two_scaled,
    sqrt_up,
)

# A kernel of this side has a gain that is proven for every image at once.
_FEW_TAPS = 5


@storable()
class FrozenConv(FrozenLinearMap):
    """One convolution of stride one, after the downsampling: the filter as it was.

    Args:
        weight: (channels out, channels in * prod(stride), k, k); an even k is padded to odd.
        stride: of the downsampling before it.
        padding_mode: "circular" or "zeros".
    """

    weight: Tensor

    def __init__(
        self,
        *,
        weight: Tensor,
        stride: tuple[int, ...],
        padding_mode: PaddingMode = "circular",
        bias: Tensor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(bias=bias, **settings)
        self.stride = tuple(stride)
        self.geometry = Geometry.of(tuple(weight.shape[2:]), padding_mode, 1, 1)
        filter_ = odd_filter(weight.detach())
        self.register_buffer("weight", filter_.clone(memory_format=torch.contiguous_format))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "stride": self.stride, "padding_mode": self.geometry.padding_mode}

    def linear(self, x: Tensor) -> Tensor:
        return self.geometry.convolve(invertible_downsample(x, self.stride) if max(self.stride) > 1 else x, self.weight)

    def proven_gain(self) -> tuple[float, float]:
        """By the taps of J^T J - s I where the filter is near to orthogonal, else by its symbol or its row sums.

        A large kernel has so many taps that its symbol at the frequencies of the image is the shorter proof, and one
        that covers the image may be orthogonal on this image alone. With zeros around it, an image is part of a larger
        torus, so that its convolution is no larger than a circular one.
        """
        kernel, size = self.geometry.kernel, self.output_shape[1:]
        covers = any(k >= n for k, n in zip(kernel, size, strict=True))
        if self.geometry.padding_mode == "circular" and (covers or max(kernel) > _FEW_TAPS):
            least, most = gain_on_image(self.weight, self.output_shape[1:])
            return least if self.is_injective() else 0.0, most
        scaled, exponent = power_of_two_scaled(in_double(self.weight))
        square = float(scaled.square().sum()) / min(self.weight.shape[:2])
        defect = filter_gram_defect_upper_bound(scaled, square)
        if not defect <= 0.01 * square:
            by_rows = ldexp_up(sqrt_up(Fraction(scaled_gram_upper_bound(scaled))), exponent)
            return 0.0, min(norm_upper_bound(self.weight), by_rows)
        low, high = gain_around(square, defect, exponent)
        return low if self.is_injective() and self.geometry.padding_mode == "circular" else 0.0, high

    def float64_program(self, input_shape: Shape) -> Float64Program:
        """The map as it is stored."""
        return self.stored_program(input_shape)

    def plain_form(self) -> nn.Module:
        """One nn.Conv2d behind the downsampling."""
        convolution = conv_module(self.weight, self.bias, self.geometry.padding_mode, self.output_shape[1:])
        return with_downsampling(self, self.stride, convolution)

    def rounding_error(self) -> Growth:
        """Of one convolution."""
        pixels = math.prod(self.output_shape[1:])
        return product_error(self.weight, absolute_norm_upper_bound(self.weight), self.bias, pixels)
