"""What residual 1-Lipschitz convolutions share: x - 2 W S relu(W^T x + b) with a diagonal S proven small enough.

If S^(1/2) W^T W S^(1/2) <= I, the map is 1-Lipschitz: between two points relu multiplies W^T (x - y) by a diagonal
matrix D with entries in [0, 1], and with A = W S^(1/2), ||A|| <= 1, and D and S diagonal,

    (I - 2 A D A^T)^T (I - 2 A D A^T) = I - 4 A D A^T + 4 A D (A^T A) D A^T <= I - 4 A (D - D^2) A^T <= I.

W^T is a convolution with a filter and W its adjoint, for either padding and every image size.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from skewconv.checks import IntOrTuple, check_counts, check_padding_mode
from skewconv.choices import PaddingMode
from skewconv.errors import ShapeError
from skewconv.nn.eval_operator import EvalOperator, Size
from skewconv.nn.gains import with_gain
from skewconv.nn.memory_format import following
from skewconv.nn.precision import compute_dtype
from skewconv.nn.primitives import ResidualStep, fitted
from skewconv.nn.proven_conv import shapes_of, square
from skewconv.ops.convolution import residual_step
from skewconv.ops.torch_modes import without_autocast

# Filters that are smaller than the root of its inverse lose their residual: what they round to would be larger.
LARGEST_SCALE = 2.0**60


class ResidualConv2d(EvalOperator, ABC):
    """keep o (x - 2 W S relu(W^T x + b)) o pad o psi: 1-Lipschitz, and the identity where relu is zero.

    Args:
        in_channels, out_channels: the residual has max(in_channels * stride^2, out_channels) channels: missing ones are
            zero, surplus ones are dropped.
        kernel_size: k, for a k x k filter, odd or even; the padding keeps the size.
        stride: by invertible downsampling.
        padding, dilation, groups: as in nn.Conv2d, where they mean what the layer does: padding "same" or its number,
            no dilation, one group.
        bias: whether there is a b.
        padding_mode: "zeros" or "circular".
        hidden_channels: of relu; as many as the residual has by default.
    """

    weight: nn.Parameter
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
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        hidden_channels: int | None = None,
    ) -> None:
        super().__init__()
        check_counts(in_channels=in_channels, out_channels=out_channels)
        kernel_size, stride = square(type(self), kernel_size, stride, padding, dilation, groups)
        check_padding_mode(padding_mode)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = kernel_size, stride
        self.padding_mode: PaddingMode = padding_mode
        self.channels = max(in_channels * stride**2, out_channels)
        self.hidden_channels = self.channels if hidden_channels is None else hidden_channels
        check_counts(hidden_channels=self.hidden_channels)
        shape = (self.hidden_channels, self.channels, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(self.hidden_channels, device=device, dtype=dtype)) if bias else None

    def reset_parameters(self) -> None:
        """As in nn.Conv2d, whose scale does not matter here; the bias is zero."""
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @abstractmethod
    def _estimated_scale(self, sources: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The diagonal of S, (hidden,) or (), to rounding: differentiable, for training."""

    @abstractmethod
    def _scale_lower_bound(self, sources: Sequence[Tensor]) -> Tensor:
        """The same in float64, so small that S^(1/2) W^T W S^(1/2) <= I is proven for the weights as they are."""

    def _definition(self) -> str:
        return f"scale of {type(self).__name__}({self.channels}, {self.hidden_channels}, {self.kernel_size})"

    def _prove(self, sources: Sequence[Tensor], size: Size) -> tuple[Tensor]:
        weight = sources[0]
        largest = min(LARGEST_SCALE, torch.finfo(weight.dtype).max / 4)
        exact = self._scale_lower_bound(sources).clamp(max=largest)
        rounded = (exact * (1 - torch.finfo(weight.dtype).eps)).to(weight.dtype)
        # Among the denormals of a short type even this may round up.
        return (torch.where(rounded.double() < exact, rounded, 0.0).to(weight),)

    def _with_derivative(self, sources: Sequence[Tensor], proven: tuple[Tensor], size: Size) -> Tensor:
        # The value that is proven, with the derivative of what it stands for.
        estimate = self._estimated_scale(sources, torch.float64).to(proven[0])
        return proven[0] + (estimate - estimate.detach())

    @property
    def scale(self) -> Tensor:
        """The diagonal of S, (hidden,) or (): in eval mode what is proven, rounded down to the layer's precision."""
        if self.training:
            return self._estimated_scale(self._sources(), compute_dtype(self.weight)).to(self.weight.dtype)
        return self._operator_in_eval().clone()

    def forward(self, x: Tensor) -> Tensor:
        """(n, c_in, h, w) or (c_in, h, w) -> (n, c_out, h / stride, w / stride)."""
        if x.dim() not in (3, 4) or x.shape[-3] != self.in_channels:
            raise ShapeError(
                f"the input of {type(self).__name__}({self.extra_repr()}) has shape (n, {self.in_channels}, h, w) or "
                f"({self.in_channels}, h, w), got {tuple(x.shape)}"
            )
        z = fitted(x if x.dim() == 4 else x.unsqueeze(0), self.stride, self.channels)
        with without_autocast(x.device):
            scale = self.scale
        y = residual_step(z, self.weight, scale, self.bias, self.padding_mode)[:, : self.out_channels]
        return following(y if x.dim() == 4 else y.squeeze(0), x)

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> ResidualStep:
        """The same two convolutions with the scale of eval mode."""
        step = ResidualStep(
            weight=self.weight,
            scale=self.scale,
            stride=self.stride,
            padding_mode=self.padding_mode,
            bias=self.bias,
            **shapes_of(self, input_shape),
        )
        return with_gain(step, (0.0, 1.0))

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"bias={self.bias is not None}, padding_mode={self.padding_mode!r}, hidden_channels={self.hidden_channels}"
        )
