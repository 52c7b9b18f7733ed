"""What convolutions built from parameters share: arguments, strides, bias, adjoint, proof and cache."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.checks import IntOrTuple, check_counts, check_padding_mode, check_same_padding, per_axis
from skewconv.choices import PaddingMode
from skewconv.errors import ArgumentError, NotInvertibleError, ShapeError
from skewconv.nn.eval_operator import EvalOperator, ProvenOperator, Size
from skewconv.ops.downsample import invertible_downsample, invertible_upsample
from skewconv.ops.torch_modes import in_format_of, uncompiled


class SquareConv2d(EvalOperator, ABC):
    """What convolutions with one kernel size and one stride share: the arguments of nn.Conv2d, checked, and shapes.

    Args:
        padding, dilation, groups: as in nn.Conv2d, where they mean what the layer does: "same" or its number, 1 and 1.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrTuple,
        stride: IntOrTuple,
        padding: str | IntOrTuple,
        dilation: IntOrTuple,
        groups: int,
        padding_mode: PaddingMode,
    ) -> None:
        super().__init__()
        check_counts(in_channels=in_channels, out_channels=out_channels)
        kind = type(self).__name__
        kernel, strides = per_axis(kernel_size, 2, "kernel_size"), per_axis(stride, 2, "stride")
        for name, values in (("kernel_size", kernel), ("stride", strides)):
            if len(set(values)) > 1:
                raise ArgumentError(f"{kind} takes one {name} for both axes, got {values}; SOC2d takes two")
        for name, value in (("dilation", dilation), ("groups", groups)):
            if set(per_axis(value, 2, name)) != {1}:
                raise ArgumentError(f"{kind} knows {name}=1 only, got {value!r}; SOC2d takes others")
        check_same_padding(padding, kernel, (1, 1))
        check_padding_mode(padding_mode)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = kernel[0], strides[0]
        self.folded_channels = in_channels * self.stride**2
        self.padding_mode: PaddingMode = padding_mode

    def _check(self, x: Tensor, channels: int, name: str) -> None:
        if x.dim() not in (3, 4) or x.shape[-3] != channels:
            raise ShapeError(
                f"the {name} of {type(self).__name__}({self.extra_repr()}) has shape (n, {channels}, h, w) or "
                f"({channels}, h, w), got {tuple(x.shape)}"
            )

    def _shapes_of(self, input_shape: tuple[int, ...]) -> dict[str, Any]:
        """The shapes of one input and one output, or a refusal."""
        channels, *size = input_shape
        if channels != self.in_channels or len(size) != 2 or any(n % self.stride for n in size):
            raise ShapeError(
                f"input_shape must be ({self.in_channels}, h, w) with h and w divisible by stride={self.stride}, got "
                f"{tuple(input_shape)}"
            )
        made = (self.out_channels, *(n // self.stride for n in size))
        return {"input_shape": tuple(input_shape), "output_shape": made}

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"bias={self.bias is not None}"
        )


class ProvenConv2d(SquareConv2d):
    """A linear map built from parameters, on images folded by the stride; in eval mode proven, and built once."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrTuple,
        stride: IntOrTuple = 1,
        padding: str | IntOrTuple = "same",
        dilation: IntOrTuple = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "circular",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode)
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        for name, shape in self._shapes().items():
            # A parameter without entries would wait for a gradient that never comes.
            new = None if 0 in shape else nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name, new)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew; the bias is zero."""
        with torch.no_grad():
            self._draw()
            if self.bias is not None:
                self.bias.zero_()

    @uncompiled
    def forward(self, x: Tensor) -> Tensor:
        """(n, c_in, h, w) or (c_in, h, w) -> (n, c_out, h / stride, w / stride)."""
        self._check(x, self.in_channels, "input")
        batch = x if x.dim() == 4 else x.unsqueeze(0)
        y = self._linear(invertible_downsample(batch, (self.stride, self.stride)))
        if self.bias is not None:
            y = y + self.bias.view(-1, 1, 1)
        return in_format_of(x, y if x.dim() == 4 else y.squeeze(0), self)

    @uncompiled
    def adjoint(self, y: Tensor) -> Tensor:
        """The adjoint of the linear part, without the bias: (n, c_out, h, w) -> (n, c_in, h stride, w stride)."""
        self._check(y, self.out_channels, "output")
        batch = y if y.dim() == 4 else y.unsqueeze(0)
        x = invertible_upsample(self._linear_adjoint(batch), (self.stride, self.stride))
        return in_format_of(y, x if y.dim() == 4 else x.squeeze(0), self)

    @abstractmethod
    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> nn.Module:
        """The map of eval mode as a primitive."""

    def _shared(self, input_shape: tuple[int, ...]) -> dict[str, Any]:
        """What every primitive that stands for the layer has: shapes, stride, bias."""
        stride = (self.stride, self.stride)
        return {**self._shapes_of(input_shape), "stride": stride, "bias": self.bias}

    @abstractmethod
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter that the operator is built from."""

    @abstractmethod
    def _draw(self) -> None:
        """Fill those parameters."""

    @abstractmethod
    def _linear(self, x: Tensor) -> Tensor:
        """(n, c_in s^2, h, w) -> (n, c_out, h, w)."""

    @abstractmethod
    def _linear_adjoint(self, y: Tensor) -> Tensor:
        """(n, c_out, h, w) -> (n, c_in s^2, h, w)."""

    @abstractmethod
    def _trained(self, sources: Sequence[Tensor], size: Size) -> Tensor:
        """The operator as training uses it."""

    @abstractmethod
    def _exact(self, sources: Sequence[Tensor], size: Size) -> Tensor:
        """The operator in float64 or complex128, as near to what it should be as that allows."""

    @abstractmethod
    def _prove(self, sources: Sequence[Tensor], size: Size) -> ProvenOperator:
        """The exact operator, scaled and rounded to what is stored, and what is proven of that."""

    def _operator(self, size: Size = ()) -> Tensor:
        return self._trained(self._sources(), size) if self.training else self._operator_in_eval(size)

    def _with_derivative(self, sources: Sequence[Tensor], proven: ProvenOperator, size: Size) -> Tensor:
        return (self._exact(sources, size) * proven.scale).to(proven.operator)

    def _sources(self) -> list[Tensor]:
        parameters = [getattr(self, name) for name in self._shapes()]
        return [p for p in parameters if p is not None]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # States of earlier versions hold the parameters without entries too.
        for name in self._shapes():
            if getattr(self, name) is None and prefix + name in state_dict:
                del state_dict[prefix + name]
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class OrthogonalConv2d(ProvenConv2d):
    """A convolution with circular padding whose singular values are all one, to what is proven.

    It has orthonormal columns if in_channels * stride^2 <= out_channels, else rows.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrTuple, *places: Any, **options: Any
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, *places, **options)
        if self.padding_mode != "circular":
            raise ArgumentError(
                f"{type(self).__name__} is orthogonal around a torus only: padding_mode must be 'circular', got "
                f"{self.padding_mode!r}; SOC2d takes zeros too"
            )

    def inverse(self, y: Tensor) -> Tensor:
        """x with forward(x) = y, for y in the range of the layer: the adjoint of y - bias."""
        if self.folded_channels > self.out_channels:
            raise NotInvertibleError(
                f"{type(self).__name__} maps {self.folded_channels} channels (in_channels * stride^2) to "
                f"{self.out_channels} and loses information; adjoint(y) gives the least-squares preimage"
            )
        self._check(y, self.out_channels, "output")
        return self.adjoint(y if self.bias is None else y - self.bias.view(-1, 1, 1))
