"""What convolutions built from parameters share: arguments, strides, bias, adjoint, proof and cache."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from skewconv.checks import IntOrTuple, check_counts, check_same_padding, per_axis
from skewconv.choices import PaddingMode
from skewconv.errors import ArgumentError, NotInvertibleError, ShapeError
from skewconv.nn.eval_operator import EvalOperator, ProvenOperator, Size, compute_dtype
from skewconv.nn.gains import with_gain
from skewconv.nn.primitives import Convolution
from skewconv.ops.convolution import convolve, full_filter, odd_filter, transpose_filter
from skewconv.ops.permutations import invertible_downsample, invertible_upsample
from skewconv.ops.torch_modes import autocasting, in_format_of, uncompiled


class SquareConv2d(EvalOperator, ABC):
    """A convolution with one kernel size and one stride, built from parameters; in eval mode proven, and built once.

    Args:
        in_channels, out_channels, bias, device, dtype: as in nn.Conv2d.
        kernel_size: k, for a k x k filter, odd or even; the padding keeps the size.
        stride: by invertible downsampling.
        padding: "same" or its number.
        dilation, groups: as in nn.Conv2d for BCOP and Cayley, after the downsampling; 1 for AOL, SLL and CPL, whose
            bounds are of one filter that mixes all channels.
        padding_mode: "zeros" or "circular"; by default zeros where the layer knows them. BCOP and Cayley are
            orthogonal around a torus only.
    """

    padding_modes: ClassVar[tuple[PaddingMode, ...]] = ("zeros", "circular")
    takes_groups: ClassVar[bool] = False
    bias: nn.Parameter | None

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
        padding_mode: PaddingMode | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_counts(in_channels=in_channels, out_channels=out_channels, groups=groups)
        kind = type(self).__name__
        kernel, strides = per_axis(kernel_size, 2, "kernel_size"), per_axis(stride, 2, "stride")
        for name, values in (("kernel_size", kernel), ("stride", strides)):
            if len(set(values)) > 1:
                raise ArgumentError(f"{kind} takes one {name} for both axes, got {values}; SOC2d takes two")
        for name, value in (("dilation", dilation), ("groups", groups)):
            if set(per_axis(value, 2, name)) != {1} and not self.takes_groups:
                raise ArgumentError(f"{kind} knows {name}=1 only, got {value!r}; SOC2d, BCOP2d, Cayley2d take others")
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if value % groups:
                raise ArgumentError(f"{name}={value} is not divisible by groups={groups}; each group needs as many")
        self.groups, self.dilation = groups, per_axis(dilation, 2, "dilation")
        check_same_padding(padding, kernel, self.dilation)
        self.padding_mode: PaddingMode = self.padding_modes[0] if padding_mode is None else padding_mode
        if self.padding_mode not in self.padding_modes:
            allowed = " or ".join(map(repr, self.padding_modes))
            raise ArgumentError(
                f"padding_mode of {kind} must be {allowed}, got {padding_mode!r}; SOC2d takes 'zeros' and 'circular'"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = kernel[0], strides[0]
        self.folded_channels = in_channels * self.stride**2
        for name, shape in self._shapes().items():
            # A parameter without entries would wait for a gradient that never comes.
            absent = 0 in shape or (name == "bias" and not bias)
            new = None if absent else nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name, new)
        self.reset_parameters()

    @abstractmethod
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter."""

    @abstractmethod
    def _draw(self) -> None:
        """Fill the parameters but for the bias."""

    @abstractmethod
    def _map(self, x: Tensor) -> Tensor:
        """(n, c_in, h, w) -> (n, c_out, h / stride, w / stride)."""

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
        y = self._map(x if x.dim() == 4 else x.unsqueeze(0))
        if autocasting(x.device) and y.dtype != torch.float64:
            y = y.to(torch.get_autocast_dtype(x.device.type))
        return in_format_of(x, y if x.dim() == 4 else y.squeeze(0), self)

    def _sources(self) -> list[Tensor]:
        parameters = [getattr(self, name) for name in self._shapes() if name != "bias"]
        return [p for p in parameters if p is not None]

    def _check(self, x: Tensor, channels: int, name: str) -> None:
        if x.dim() not in (3, 4) or x.shape[-3] != channels:
            raise ShapeError(
                f"the {name} of {type(self).__name__}({self.extra_repr()}) has shape (n, {channels}, h, w) or "
                f"({channels}, h, w), got {tuple(x.shape)}"
            )

    def _shapes_of(self, input_shape: tuple[int, ...]) -> dict[str, Any]:
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
            + (f", dilation={self.dilation}" if max(self.dilation) > 1 else "")
            + (f", groups={self.groups}" if self.groups > 1 else "")
        )


class LinearConv2d(SquareConv2d):
    """A linear map on images folded by the stride, and a bias."""

    def gain_bounds(self, input_shape: tuple[int, ...] | None = None) -> tuple[float, float]:
        """Proven (min, max) of the singular values of the operator in eval mode, for images of any size."""
        return self._proven().gain

    def _map(self, x: Tensor) -> Tensor:
        y = self._linear(invertible_downsample(x, (self.stride, self.stride)))
        return y if self.bias is None else y + self.bias.view(-1, 1, 1)

    @uncompiled
    def adjoint(self, y: Tensor) -> Tensor:
        """The adjoint of the linear part, without the bias: (n, c_out, h, w) -> (n, c_in, h stride, w stride)."""
        self._check(y, self.out_channels, "output")
        batch = y if y.dim() == 4 else y.unsqueeze(0)
        x = invertible_upsample(self._linear_adjoint(batch), (self.stride, self.stride))
        return in_format_of(y, x if y.dim() == 4 else x.squeeze(0), self)

    def _shared(self, input_shape: tuple[int, ...]) -> dict[str, Any]:
        return {**self._shapes_of(input_shape), "stride": (self.stride, self.stride), "bias": self.bias}

    @abstractmethod
    def _linear(self, x: Tensor) -> Tensor:
        """(n, c_in s^2, h, w) -> (n, c_out, h, w)."""

    @abstractmethod
    def _linear_adjoint(self, y: Tensor) -> Tensor:
        """(n, c_out, h, w) -> (n, c_in s^2, h, w)."""

    @abstractmethod
    def _computed(self, sources: Sequence[Tensor], size: Size, dtype: torch.dtype, *, exact: bool) -> Tensor:
        """The operator in this precision: as training uses it, or as near to what it should be as float64 allows."""

    def _operator(self, size: Size = ()) -> Tensor:
        if not self.training:
            return self._operator_in_eval(size)
        sources = self._sources()
        return self._computed(sources, size, compute_dtype(sources[0]), exact=False)

    def _exact(self, sources: Sequence[Tensor], size: Size) -> Tensor:
        return self._computed(sources, size, torch.float64, exact=True)

    def _with_derivative(self, sources: Sequence[Tensor], proven: ProvenOperator, size: Size) -> Tensor:
        return (self._exact(sources, size) * proven.scale).to(proven.operator)


class FilterConv2d(LinearConv2d):
    """A linear map that is one convolution, whose filter is built from the parameters."""

    @property
    def weight(self) -> Tensor:
        """The filter in the layout of nn.Conv2d: (c_out, c_in stride^2 / groups, k, k)."""
        return self._operator().clone()

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> Convolution:
        low, high = self.gain_bounds()
        weight = full_filter(self.weight, self.groups, self.dilation)
        convolution = Convolution(**self._shared(input_shape), weight=weight, padding_mode=self.padding_mode)
        # Where channels are cut off, some inputs vanish.
        return with_gain(convolution, (low if self.folded_channels <= self.out_channels else 0.0, high))

    def _operator(self, size: Size = ()) -> Tensor:
        return super()._operator(size).to(self._sources()[0].dtype)

    def _linear(self, x: Tensor) -> Tensor:
        return self._convolve(x, self._operator())

    def _linear_adjoint(self, y: Tensor) -> Tensor:
        return self._convolve(y, transpose_filter(odd_filter(self._operator()), self.groups))

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        return convolve(x, weight, padding_mode=self.padding_mode)


class Orthogonal(LinearConv2d):
    """A circular convolution, orthonormal in columns if in_channels * stride^2 <= out_channels, else in rows.

    Groups are layers side by side, each with parameters of its own: blocks of a matrix. Dilation replaces the shifts z
    of the symbol by z^d, which are as unitary.
    """

    padding_modes = ("circular",)
    takes_groups = True

    @property
    def group_channels(self) -> tuple[int, int]:
        """Channels of one group, after the downsampling: (inputs, outputs)."""
        return self.folded_channels // self.groups, self.out_channels // self.groups

    @abstractmethod
    def _shapes_of_group(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter of one group, but for the bias."""

    @abstractmethod
    def _computed_group(self, sources: Sequence[Tensor], size: Size, dtype: torch.dtype, *, exact: bool) -> Tensor:
        """The operator of one group."""

    @abstractmethod
    def _joined(self, operators: list[Tensor]) -> Tensor:
        """The operator of all groups from that of each."""

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        groups = () if self.groups == 1 else (self.groups,)
        shapes = {name: (*groups, *shape) for name, shape in self._shapes_of_group().items()}
        return {"bias": (self.out_channels,), **shapes}

    def _computed(self, sources: Sequence[Tensor], size: Size, dtype: torch.dtype, *, exact: bool) -> Tensor:
        if self.groups == 1:
            return self._computed_group(sources, size, dtype, exact=exact)
        parts = zip(*(source.unbind(0) for source in sources), strict=True)
        return self._joined([self._computed_group(part, size, dtype, exact=exact) for part in parts])

    def inverse(self, y: Tensor) -> Tensor:
        """x with forward(x) = y, for y in the range of the layer: the adjoint of y - bias."""
        if self.folded_channels > self.out_channels:
            raise NotInvertibleError(
                f"{type(self).__name__} maps {self.folded_channels} channels (in_channels * stride^2) to "
                f"{self.out_channels} and loses information; adjoint(y) gives the least-squares preimage"
            )
        self._check(y, self.out_channels, "output")
        return self.adjoint(y if self.bias is None else y - self.bias.view(-1, 1, 1))
