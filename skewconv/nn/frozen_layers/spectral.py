"""A frozen layer as one matrix for each frequency."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.nn import plain_layers
from skewconv.nn.frozen_layers.base import FrozenLinearMap
from skewconv.nn.frozen_layers.proven_gain import gain_of_matrices, rounded_with_gain
from skewconv.nn.frozen_layers.tables import exact_tables, table_errors
from skewconv.nn.plain_parts import with_downsampling, with_upsampling, zero_bias
from skewconv.nn.protocol import Float64Program, Growth, Shape
from skewconv.nn.protocol.products import spread_norm_up
from skewconv.nn.protocol.stored import storable
from skewconv.ops.downsample import invertible_downsample, invertible_upsample
from skewconv.rigor import (
    ERROR_UP,
    FEW_ROUNDINGS_UP,
    MILLIONS_DOWN,
    MILLIONS_UP,
    UNIT_ROUNDOFF,
    absolute_norm_upper_bound,
    gamma,
    in_double,
)


@storable()
class FrozenSpectral(FrozenLinearMap):
    """Circular convolutions: a real Fourier transform, one product per frequency, and the transform back.

    Args:
        weight: (frequencies * groups, 2 inputs, 2 outputs): real and imaginary parts side by side.
        forward_table: (2 frequencies, pixels); inverse_table: (pixels, 2 frequencies).
        groups: number of independent channel groups.
        stride: of the downsampling before the map, or, if ``upsamples``, of the upsampling after it.

    The gain is that of the product of all three as they are stored, the rounding of the tables included.
    """

    weight: Tensor
    forward_table: Tensor
    inverse_table: Tensor

    def __init__(
        self,
        *,
        weight: Tensor,
        forward_table: Tensor,
        inverse_table: Tensor,
        groups: int,
        stride: tuple[int, ...],
        upsamples: bool,
        bias: Tensor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(bias=bias, **settings)
        self.groups, self.stride, self.upsamples = groups, tuple(stride), upsamples
        for name, tensor in (("weight", weight), ("forward_table", forward_table), ("inverse_table", inverse_table)):
            self.register_buffer(name, tensor.detach().clone())

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "groups": self.groups, "stride": self.stride, "upsamples": self.upsamples}

    def linear(self, x: Tensor) -> Tensor:
        if not self.upsamples and max(self.stride) > 1:
            x = invertible_downsample(x, self.stride)
        batch, size = x.shape[0], x.shape[2:]
        pixels = x.flatten(2).permute(2, 0, 1).flatten(1)
        waves = (self.forward_table @ pixels).view(-1, 2, batch, self.groups, x.shape[1] // self.groups)
        rows = waves.permute(0, 3, 2, 1, 4).flatten(0, 1).flatten(2)
        products = torch.bmm(rows, self.weight).view(-1, self.groups, batch, 2, self.weight.shape[2] // 2)
        columns = products.permute(0, 3, 2, 1, 4).flatten(2).flatten(0, 1)
        y = (self.inverse_table @ columns).view(-1, batch, self.groups * products.shape[-1])
        y = y.permute(1, 2, 0).unflatten(2, size)
        return invertible_upsample(y, self.stride) if self.upsamples and max(self.stride) > 1 else y

    def plain_form(self) -> nn.Module:
        """The same three products."""
        channels = self.groups * self.weight.shape[2] // 2
        bias = zero_bias(None if self.upsamples else self.bias, channels, self.weight)
        products = plain_layers.Spectral(self.weight, bias, self.forward_table, self.inverse_table, self.groups)
        if self.upsamples:
            return with_upsampling(self, self.stride, products, self.bias)
        return with_downsampling(self, self.stride, products)

    @property
    def image_size(self) -> tuple[int, ...]:
        """The size of the image that the matrices act on."""
        return self.input_shape[1:] if self.upsamples else self.output_shape[1:]

    def proven_gain(self) -> tuple[float, float]:
        """The matrices' singular values, and how far the tables are from the transforms that they stand for."""
        low, high = gain_of_matrices(self.weight)
        low -= _asymmetry(self.weight, self.image_size)
        before, after = table_errors(self.forward_table, self.inverse_table, self.image_size)
        stretch = (1 + before) * (1 + after) * FEW_ROUNDINGS_UP
        return _with_tables(low, high, stretch, self.is_injective())

    def float64_program(self, input_shape: Shape) -> Float64Program:
        """The map as it is stored."""
        return self.stored_program(input_shape)

    def rounding_error(self) -> Growth:
        """Of three products: each one's error is stretched by what comes after it (see :func:`table_errors`)."""
        pixels, frequencies = self.forward_table.shape[1], self.forward_table.shape[0]
        before, after = table_errors(self.forward_table, self.inverse_table, self.image_size)
        matrices = gain_of_matrices(self.weight)[1]
        there, back = math.sqrt(pixels) * (1 + before), math.sqrt(2 / pixels) * (1 + after)
        sizes = max(absolute_norm_upper_bound(block) for block in self.weight)
        slope = gamma(pixels + 2) * absolute_norm_upper_bound(self.forward_table) * matrices * back
        slope += gamma(self.weight.shape[1] + 2) * sizes * there * back
        slope += gamma(frequencies + 2) * absolute_norm_upper_bound(self.inverse_table) * matrices * there
        error = Growth(slope * ERROR_UP, 0.0)
        if self.bias is None:
            return error
        # Adding the bias rounds once more, by a share of the sum.
        shift = spread_norm_up(self.bias, math.prod(self.output_shape))
        return error.plus(Growth(matrices * there * back * ERROR_UP, shift).times(2 * UNIT_ROUNDOFF))


def frozen_spectral(
    exact: Tensor,
    dtype: torch.dtype,
    size: tuple[int, ...],
    *,
    gain: tuple[float, float],
    tol: float,
    injective: bool,
    device: torch.device,
    **common: Any,
) -> FrozenSpectral:
    """The layer from its matrices at the frequencies of ``rfftn``: (frequencies * groups, outputs, inputs), complex.

    Args:
        exact: in complex128.
        dtype: what the layer stores, float32 or float64.
        size: of the image that they act on.
        gain: of the map without rounding, which says how far from orthogonal it may be.
        tol: the largest relative change allowed.
        injective: whether nothing is cut off.
        device: where the layer is to be.
        common: the shapes, the bias, the groups, the stride and its direction.
    """
    forward, inverse = (table.to(dtype) for table in exact_tables(size))
    before, after = table_errors(forward, inverse, size)
    stretch = (1 + before) * (1 + after) * FEW_ROUNDINGS_UP
    matrices, (low, high) = rounded_with_gain(exact, dtype.to_complex(), gain, tol, injective, stretch=stretch)
    weight = _as_real_products(matrices)
    low -= _asymmetry(weight, size)
    return FrozenSpectral(
        weight=weight.to(device),
        forward_table=forward.to(device),
        inverse_table=inverse.to(device),
        gain=_with_tables(low, high, stretch, injective),
        **common,
    )


def _with_tables(low: float, high: float, stretch: float, injective: bool) -> tuple[float, float]:
    """The gain of matrices between transforms that stretch by at most this, and miss as much at the most."""
    largest = high * stretch * FEW_ROUNDINGS_UP
    # Where the matrices were shrunk to make up for the tables, the product is at most one by construction.
    most = 1.0 if largest > 1.0 and high <= 1.0 / stretch else largest
    return max(0.0, (low - high * (stretch - 1) * ERROR_UP) * MILLIONS_DOWN) if injective else 0.0, most


def _asymmetry(weight: Tensor, size: tuple[int, ...]) -> float:
    """What the way back discards: half of max ||Q(-w) - conj Q(w)||_F where both are there, in the columns 0 and n / 2.

    Args:
        weight: (frequencies * groups, 2 inputs, 2 outputs), as a layer stores them.
        size: of the image.
    """
    *others, last = size
    stored = in_double(weight).unflatten(0, (*others, last // 2 + 1, -1))
    lines = stored.movedim(len(others), 0)[[0, last // 2] if last % 2 == 0 else [0]]
    mirrored = lines
    for axis in range(1, len(others) + 1):
        mirrored = mirrored.flip(axis).roll(1, axis)
    # Of a conjugate the parts that mix real and imaginary numbers have the other sign.
    inputs, outputs = weight.shape[1] // 2, weight.shape[2] // 2
    signs = lines.new_ones(weight.shape[1:])
    signs[:inputs, outputs:] = signs[inputs:, :outputs] = -1
    return float(torch.linalg.matrix_norm(mirrored - signs * lines).max()) / 2 * MILLIONS_UP * FEW_ROUNDINGS_UP


def _as_real_products(matrices: Tensor) -> Tensor:
    """(n, out, in) complex -> (n, 2 in, 2 out) real, to be multiplied from the left by (real, imaginary) parts."""
    re, im = matrices.real.mT, matrices.imag.mT
    return torch.cat([torch.cat([re, im], 2), torch.cat([-im, re], 2)], 1)
