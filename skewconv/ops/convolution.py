"""The convolution L * x of the paper: stride one, size preserving, zero or circular padding."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.checks import IntOrTuple, check_padding_mode, per_axis
from skewconv.choices import PaddingMode
from skewconv.ops.filters import odd_filter, transposed

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class Geometry:
    """How a filter meets an image: kernel (odd), dilation, groups, and what lies past the border."""

    kernel: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    padding_mode: PaddingMode

    @staticmethod
    def of(kernel: tuple[int, ...], padding_mode: PaddingMode, dilation: IntOrTuple, groups: int) -> "Geometry":
        """Check the arguments of a convolution once; even kernel sizes become the next odd ones."""
        check_padding_mode(padding_mode)
        odd = tuple(k + 1 - k % 2 for k in kernel)
        return Geometry(odd, per_axis(dilation, len(kernel), "dilation"), groups, padding_mode)

    @property
    def axes(self) -> int:
        return len(self.kernel)

    @property
    def reach(self) -> tuple[int, ...]:
        return tuple(d * (k // 2) for d, k in zip(self.dilation, self.kernel, strict=True))

    def within_reach(self, weight: Tensor) -> Tensor:
        """The taps in the middle of a filter: those of this kernel, where others leave the image from every pixel."""
        if tuple(weight.shape[2:]) == self.kernel:
            return weight
        for axis, (k, kept) in enumerate(zip(weight.shape[2:], self.kernel, strict=True), 2):
            weight = weight.narrow(axis, (k - kept) // 2, kept)
        return weight.contiguous()

    def _padded(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """x with a circular border attached, and the zero padding still to be done by the convolution."""
        if self.padding_mode == "zeros" or not any(self.reach):
            return x, self.reach
        if all(r <= n for r, n in zip(self.reach, x.shape[2:], strict=True)):
            border = [r for reach in reversed(self.reach) for r in (reach, reach)]
            return F.pad(x, border, mode="circular"), (0,) * self.axes
        # PyTorch's own border goes around the image once.
        for axis, (r, n) in enumerate(zip(self.reach, x.shape[2:], strict=True), 2):
            x = x.index_select(axis, torch.arange(-r, n + r, device=x.device) % n)
        return x, (0,) * self.axes

    def convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        """(batch, c_in, *size), (c_out, c_in / groups, *kernel) -> (batch, c_out, *size)."""
        padded, zeros = self._padded(x)
        return _CONV[self.axes](padded, weight, padding=zeros, dilation=self.dilation, groups=self.groups)

    def weight_grad(self, x: Tensor, grad: Tensor, weight: Tensor) -> Tensor:
        """The gradient of <grad, convolve(x, weight)> in the weight; only the shape of the weight is read."""
        padded, zeros = self._padded(x)
        ones, none = (1,) * self.axes, (0,) * self.axes
        arguments = (None, ones, zeros, self.dilation, False, none, self.groups, (False, True, False))
        return torch.ops.aten.convolution_backward(grad, padded, weight, *arguments)[1]


def convolve(
    x: Tensor, weight: Tensor, *, padding_mode: PaddingMode = "zeros", dilation: IntOrTuple = 1, groups: int = 1
) -> Tensor:
    """y[i] = sum_t weight[t] x[i + t], with t running over the taps around the centre; the size is kept.

    (batch, c_in, *size), (c_out, c_in / groups, *kernel) -> (batch, c_out, *size). Even kernels act as with
    ``padding="same"``, and a circular one wider than the image wraps as often as it must.
    """
    geometry = Geometry.of(tuple(weight.shape[2:]), padding_mode, dilation, groups)
    return geometry.convolve(x, odd_filter(weight))


def residual_step(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, padding_mode: PaddingMode = "zeros"
) -> Tensor:
    """x - 2 W S relu(W^T x + b) on images (n, c, h, w), which keep their shape.

    The weight is the filter of W^T, (hidden, c, k, k), the scale the diagonal of S, (hidden,) or () for a multiple of
    the identity, and the bias b is (hidden,).
    """
    hidden = convolve(x, weight, padding_mode=padding_mode)
    if bias is not None:
        hidden = hidden + bias.view(-1, 1, 1)
    step = (2 * scale).to(hidden.dtype)
    moved = torch.relu(hidden) * (step.view(-1, 1, 1) if step.dim() else step)
    return x - convolve(moved, adjoint_filter(weight), padding_mode=padding_mode)


def adjoint_filter(weight: Tensor) -> Tensor:
    """The filter of the adjoint convolution, of odd sizes: (hidden, c, k, k) -> (c, hidden, k', k')."""
    return transposed(odd_filter(weight))
