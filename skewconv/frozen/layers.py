"""Frozen layers: everything that depends on the weights alone was computed when they were made."""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.errors import ArgumentError, ShapeError
from skewconv.nn._cache import fingerprint
from skewconv.nn.downsample import invertible_downsample, invertible_upsample
from skewconv.ops.convolution import Geometry
from skewconv.ops.exponential import apply_polynomial
from skewconv.ops.polynomials import Polynomial


class Frozen(nn.Module, ABC):
    """A linear map between images of fixed sizes, with a bias, and with a proven (min, max) gain on record.

    Args:
        input_shape: the shape of one input, without the batch axis.
        output_shape: of one output.
        gain: proven bounds of ||S x|| / ||x||.
        bias: (channels out,) or None.
    """

    bias: Tensor | None

    def __init__(
        self,
        input_shape: tuple[int, ...],
        output_shape: tuple[int, ...],
        gain: tuple[float, float],
        bias: Tensor | None,
    ) -> None:
        super().__init__()
        self.input_shape, self.output_shape = tuple(input_shape), tuple(output_shape)
        self.gain = (float(gain[0]), float(gain[1]))
        self._sealed: tuple[Hashable, ...] = ()
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        batched = x.dim() == len(self.input_shape) + 1
        if tuple(x.shape[-len(self.input_shape) :]) != self.input_shape or not (batched or x.shape == self.input_shape):
            raise ShapeError(
                f"this layer was frozen for inputs of shape (batch, {', '.join(map(str, self.input_shape))}), got "
                f"{tuple(x.shape)}; freeze the model again for the new size"
            )
        y = self.linear(x if batched else x[None])
        if self.bias is not None:
            y = y + self.bias.view(-1, *(1,) * (len(self.output_shape) - 1))
        return y if batched else y[0]

    @abstractmethod
    def linear(self, x: Tensor) -> Tensor:
        """(batch, *input_shape) -> (batch, *output_shape), without bias."""

    def seal(self) -> None:
        """Remember the content that the gain is proven for."""
        self._sealed = self._content()

    def _content(self) -> tuple[Hashable, ...]:
        return tuple(part[:3] for part in fingerprint(*self.buffers()))

    def gain_bounds(self) -> tuple[float, float]:
        """Proven (min, max) of ||S x|| / ||x||; refused if the tensors have changed since it was proven."""
        if self._sealed and self._sealed != self._content():
            raise ArgumentError(
                f"the tensors of this {type(self).__name__} were changed or converted after its gain was proven; "
                "change or convert the original and freeze it again"
            )
        return self.gain

    def lipschitz_upper_bound(self, input_shape: tuple[int, ...]) -> float:
        """The largest gain."""
        return self.gain_bounds()[1]

    def settings(self) -> dict[str, Any]:
        """What the constructor needs besides the tensors, as JSON values."""
        return {"input_shape": self.input_shape, "output_shape": self.output_shape, "gain": self.gain}

    def extra_repr(self) -> str:
        shapes = (" x ".join(map(str, s)) for s in (self.input_shape, self.output_shape))
        return "{} -> {}, gain in [{:.7f}, {:.7f}]".format(*shapes, *self.gain)


class FrozenDense(Frozen):
    """The matrix of the map: one product for everything.

    Args:
        weight: (entries out, entries in).
    """

    weight: Tensor

    def __init__(self, *, weight: Tensor, bias: Tensor | None = None, **settings: Any) -> None:
        super().__init__(bias=bias, **settings)
        self.register_buffer("weight", weight.detach().clone())

    def linear(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1), self.weight).unflatten(1, self.output_shape)


class FrozenSpectral(Frozen):
    """Circular convolutions: a real Fourier transform, one product per frequency, and the transform back.

    Args:
        weight: (frequencies * groups, 2 inputs, 2 outputs): real and imaginary parts side by side.
        forward_table: (2 frequencies, pixels); inverse_table: (pixels, 2 frequencies).
        groups: number of independent channel groups.
        stride: of the downsampling before the map, or, if ``upsamples``, of the upsampling after it.
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


class FrozenSeries(Frozen):
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


class FrozenConv(Frozen):
    """One circular convolution, for BCOP: the filter as it was.

    Args:
        weight: (channels out, channels in * prod(stride), k, k).
        stride: of the downsampling before it.
    """

    weight: Tensor

    def __init__(self, *, weight: Tensor, stride: tuple[int, ...], bias: Tensor | None = None, **settings: Any) -> None:
        super().__init__(bias=bias, **settings)
        self.stride = tuple(stride)
        self.geometry = Geometry.of(tuple(weight.shape[2:]), "circular", 1, 1)
        self.register_buffer("weight", weight.detach().clone(memory_format=torch.contiguous_format))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "stride": self.stride}

    def linear(self, x: Tensor) -> Tensor:
        return self.geometry.convolve(invertible_downsample(x, self.stride) if max(self.stride) > 1 else x, self.weight)
