"""What orthogonal convolutions with circular padding share beside the proof: an inverse."""

from torch import Tensor

from skewconv.errors import NotInvertibleError
from skewconv.nn.proven_conv import ProvenConv2d


class OrthogonalConv2d(ProvenConv2d):
    """A convolution whose singular values are all one, to what is proven.

    Args:
        in_channels, out_channels: the map has orthonormal columns if in_channels * stride^2 <= out_channels, else rows.
        kernel_size: k, for a k x k filter; odd or even, with circular padding to the same size.
        stride: by invertible downsampling.
        padding, dilation, groups, padding_mode: as in nn.Conv2d, where they mean what the layer does: padding "same" or
            its number, no dilation, one group, and "circular".
    """

    def inverse(self, y: Tensor) -> Tensor:
        """x with forward(x) = y, for y in the range of the layer: the adjoint of y - bias."""
        if self.folded_channels > self.out_channels:
            raise NotInvertibleError(
                f"{type(self).__name__} maps {self.folded_channels} channels (in_channels * stride^2) to "
                f"{self.out_channels} and loses information; adjoint(y) gives the least-squares preimage"
            )
        self._check(y, self.out_channels, "output")
        return self.adjoint(y if self.bias is None else y - self.bias.view(-1, 1, 1))
