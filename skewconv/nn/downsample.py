"""Invertible downsampling as a module (Section 6.3 of the paper)."""

from torch import Tensor, nn

from skewconv.checks import IntOrTuple
from skewconv.nn.memory_format import following
from skewconv.ops.downsample import check_stride, invertible_downsample, invertible_upsample


class InvertibleDownsample(nn.Module):
    """psi: (batch, c, *size) -> (batch, c * prod(stride), *size / stride), a permutation of the entries.

    >>> import torch
    >>> InvertibleDownsample(2)(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 12, 4, 4])

    Args:
        stride: an integer for every spatial axis (batched input, 1 to 3 axes), or a tuple with one for each axis
            (unbatched input is then understood too).

    Reference: Jacobsen, Smeulders, Oyallon, "i-RevNet", 2018.
    """

    def __init__(self, stride: IntOrTuple) -> None:
        super().__init__()
        check_stride(stride)
        self.stride = stride if isinstance(stride, int) else tuple(stride)

    def forward(self, x: Tensor) -> Tensor:
        return following(invertible_downsample(x, self.stride), x)

    def inverse(self, y: Tensor) -> Tensor:
        """x with forward(x) == y."""
        return following(invertible_upsample(y, self.stride), y)

    def extra_repr(self) -> str:
        return f"stride={self.stride}"
