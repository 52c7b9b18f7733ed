"""A frozen skew orthogonal convolution that keeps its convolutions."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from skewconv.errors import ArgumentError
from skewconv.nn import plain_layers
from skewconv.nn.frozen_layers.base import FrozenLinearMap
from skewconv.nn.plain_parts import once_around, with_downsampling, with_upsampling, zero_bias
from skewconv.nn.protocol import Float64Program, Growth, NoPlainFormError, NoProgramError, Shape
from skewconv.nn.protocol.stored import storable
from skewconv.nn.soc.float64_exponential import exponential_program
from skewconv.ops.convolution import Geometry
from skewconv.ops.convolution_exponential import apply_polynomial
from skewconv.ops.downsample import invertible_downsample, invertible_upsample
from skewconv.ops.filters import skew_defect
from skewconv.ops.norms import norm_upper_bound, norm_upper_bound_at
from skewconv.ops.polynomials import Polynomial, polynomial
from skewconv.ops.series import SERIES


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
    # The more it may differ from the layer it stands for, the fewer products it has.
    spends_tolerance: ClassVar[bool] = True

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
        layer = cls(**arguments)
        layer.prove()
        return layer

    def with_weight(self, weight: Tensor) -> "FrozenSeries":
        """The layer with another skew filter; where that is larger than before, the polynomial's interval grows."""
        g, old = self.geometry, self.polynomial
        norm = norm_upper_bound_at(weight, self.image_size, g.padding_mode, dilation=g.dilation, groups=g.groups)
        if norm > old.norm_bound:
            # Another proof of the same norm, by other means, shall find it in the interval too.
            wider = polynomial(norm * (1 + 1e-9), old.degree, old.series)
            old = wider.non_expansive() if old.gain[1] <= 1 else wider
        layer = FrozenSeries(**{**self._arguments(), "weight": weight, "polynomial": old, "bias": self.bias})
        layer.gain = layer.proven_gain()
        return layer

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

    def plain_form(self) -> nn.Module:
        """The polynomial by Horner's rule: one convolution a step."""
        read, kept, geometry = self.read_channels, self.kept_channels, self.geometry
        widths = (kept, read) if self.upsamples else (read, kept)
        if self.weight.is_complex() or geometry.axes != 2:
            raise NoPlainFormError(self, "its images must be real and have two axes")
        if geometry.groups > 1 and {*widths} != {len(self.weight)}:
            raise NoPlainFormError(self, "groups must have as many channels before as after, and no stride")
        bias = None if self.upsamples else self.bias
        weight, dilation = self.weight, (geometry.dilation[0], geometry.dilation[1])
        if geometry.padding_mode == "circular":
            weight, dilation = once_around(weight, dilation, self.image_size)
        chain = plain_layers.Chain(
            weight.contiguous(),
            zero_bias(bias, widths[1], self.weight),
            _in_powers(self.polynomial, self.upsamples),
            widths,
            geometry.padding_mode,
            dilation,
            geometry.groups,
        )
        if self.upsamples:
            return with_upsampling(self, self.stride, chain, self.bias)
        return with_downsampling(self, self.stride, chain)

    def proven_gain(self) -> tuple[float, float]:
        """The polynomial's gain on its interval, if the filter is skew and its norm is proven to lie in there."""
        groups = self.geometry.groups
        if skew_defect(self.weight, groups) != 0.0:
            raise ArgumentError("the filter of this FrozenSeries is not skew, so nothing is known of its exponential")
        if not any(norm() <= self.polynomial.norm_bound for norm in (self._norm_here, self._norm_anywhere)):
            raise ArgumentError(
                "the filter of this FrozenSeries is not proven to have a norm of at most "
                f"{self.polynomial.norm_bound}, the interval of its polynomial; freeze the original again"
            )
        low, high = self.polynomial.gain
        return low if self.is_injective() else 0.0, high

    def _norm_here(self) -> float:
        g = self.geometry
        options: dict[str, Any] = {"dilation": g.dilation, "groups": g.groups}
        return norm_upper_bound_at(self.weight, self.image_size, g.padding_mode, **options)

    def _norm_anywhere(self) -> float:
        return norm_upper_bound(self.weight, "fantastic-four", groups=self.geometry.groups)

    def rounding_error(self) -> Growth:
        """Of the recurrence of each group, in the order in which :meth:`float64_program` runs it, and of the bias."""
        return self.float64_program(self.input_shape).error

    def float64_program(self, input_shape: Shape) -> Float64Program:
        """The recurrence in an order of sums whose rounding is known."""
        if self.weight.is_complex():
            raise NoProgramError(self, "the rounding error of complex layers is not known")
        program = exponential_program(
            self.weight,
            self.polynomial,
            self.geometry,
            self.bias,
            input_shape,
            self.proven_gain()[1],
            outputs=self.read_channels if self.upsamples else self.kept_channels,
            stride=self.stride,
            upsamples=self.upsamples,
        )
        return self.of_stated_shapes(program, input_shape)


def _in_powers(p: Polynomial, inverse: bool) -> tuple[float, ...]:
    """The coefficients of powers of J, or of -J."""
    series = SERIES[p.series]
    exact = series.in_powers(series.exact_coefficients(p.coefficients), p.norm_bound)
    rho = Fraction(p.norm_bound) * (-1 if inverse else 1)
    return tuple(float(c / rho**k) for k, c in enumerate(exact))
