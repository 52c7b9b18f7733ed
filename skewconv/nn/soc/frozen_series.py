"""A frozen skew orthogonal convolution that keeps its convolutions."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.nn.frozen_layers.base import FrozenLinearMap
from skewconv.nn.protocol.stored import storable
from skewconv.ops.convolution import Geometry
from skewconv.ops.convolution_exponential import apply_polynomial
from skewconv.ops.downsample import invertible_downsample, invertible_upsample
from skewconv.ops.polynomials import Polynomial


@storable()
class FrozenSeries(FrozenLinearMap):
    """The convolutions of a polynomial, with the filter already normalised and the fewest steps that suffice.

    Args:
        weight: (m, m / groups, *kernel), the normalised skew filter.
        polynomial: of the Jacobian.
        geometry: how the filter meets the image.
        stride: of the downsampling before the map, or, if ``upsamples``, of the upsampling after its adjoint.
    """

    weight: Tensor

    def __init__(
        self,
        *,
        weight: Tensor,
        polynomial: Polynomial,
        geometry: Geometry,
        stride: tuple[int, ...],
        upsamples: bool,
        bias: Tensor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(bias=bias, **settings)
        self.polynomial, self.geometry = polynomial, geometry
        self.stride, self.upsamples = tuple(stride), upsamples
        # Channels last in memory, as the layers keep it.
        self.register_buffer(
            "weight", weight.detach().movedim(1, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 1)
        )

    def settings(self) -> dict[str, Any]:
        p, g = self.polynomial, self.geometry
        return {
            **super().settings(),
            "polynomial": [p.series, p.norm_bound, p.coefficients, p.truncation_error],
            "geometry": [g.kernel, g.dilation, g.groups, g.padding_mode],
            "stride": self.stride,
            "upsamples": self.upsamples,
        }

    @classmethod
    def from_settings(
        cls, settings: dict[str, Any], tensors: Mapping[str, Tensor], children: Mapping[str, nn.Module]
    ) -> "FrozenSeries":
        """The layer again from its settings and tensors."""
        series, rho, coefficients, error = settings["polynomial"]
        kernel, dilation, groups, padding_mode = settings["geometry"]
        arguments: dict[str, Any] = {
            **settings,
            **tensors,
            "polynomial": Polynomial(series, rho, tuple(coefficients), error),
            "geometry": Geometry(tuple(kernel), tuple(dilation), groups, padding_mode),
        }
        return cls(**arguments)

    @property
    def read_channels(self) -> int:
        """Channels that the exponential reads (that its adjoint makes), after downsampling."""
        shape = self.output_shape if self.upsamples else self.input_shape
        return shape[0] * math.prod(self.stride)

    @property
    def kept_channels(self) -> int:
        """Channels of the exponential that are kept (that its adjoint reads)."""
        return self.input_shape[0] if self.upsamples else self.output_shape[0]

    @property
    def image_size(self) -> tuple[int, ...]:
        """The size of the image that the exponential acts on."""
        return self.input_shape[1:] if self.upsamples else self.output_shape[1:]

    def adjoint(self) -> "FrozenSeries":
        """The adjoint map, without bias."""
        settings = {**self._arguments(), "input_shape": self.output_shape, "output_shape": self.input_shape}
        return FrozenSeries(**{**settings, "upsamples": not self.upsamples})

    def _arguments(self) -> dict[str, Any]:
        return {**self.settings(), "weight": self.weight, "polynomial": self.polynomial, "geometry": self.geometry}

    def linear(self, x: Tensor) -> Tensor:
        folds = max(self.stride) > 1
        if folds and not self.upsamples:
            x = invertible_downsample(x, self.stride)
        y = apply_polynomial(
            x,
            self.weight,
            self.polynomial,
            self.geometry,
            out_channels=self.read_channels if self.upsamples else self.kept_channels,
            inverse=self.upsamples,
        )
        return invertible_upsample(y, self.stride) if folds and self.upsamples else y
