"""What a skew orthogonal convolution refuses to take."""

from typing import TYPE_CHECKING

from torch import Tensor

from skewconv.errors import DtypeError, ShapeError
from skewconv.ops.torch_modes import autocasting

if TYPE_CHECKING:
    from skewconv.nn.soc.skew_conv import SkewConv


def check_input(layer: "SkewConv", x: Tensor, channels: int, stride: tuple[int, ...]) -> None:
    """Refuse inputs of other shapes, types or channels.

    Args:
        layer: which was given x.
        channels: what it takes.
        stride: what the image size must be divisible by.
    """
    name = type(layer).__name__
    if x.dim() not in (layer.axes + 1, layer.axes + 2):
        raise ShapeError(
            f"{name} takes (batch, {channels}, *size) or ({channels}, *size) with {layer.axes} spatial axes, "
            f"got {tuple(x.shape)}"
        )
    if x.is_complex() != layer.is_complex or not (x.is_complex() or x.is_floating_point()):
        kind, other = ("complex", "SOC for real") if layer.is_complex else ("real floating", "SUC for complex")
        raise DtypeError(f"{name} takes {kind} input, got {x.dtype}; use {other} input, or convert it")
    if x.dtype != layer.filter_dtype and not autocasting(x.device):
        raise DtypeError(f"the input is {x.dtype} and the layer {layer.filter_dtype}; convert one with .to(dtype)")
    if x.shape[-layer.axes - 1] != channels:
        raise ShapeError(f"{name} takes {channels} channels, got {x.shape[-layer.axes - 1]} (shape {tuple(x.shape)})")
    size = x.shape[-layer.axes :]
    if 0 in size or any(n % s for n, s in zip(size, stride, strict=True)):
        raise ShapeError(
            f"the image size {tuple(size)} must be positive and divisible by the stride {stride}; crop or pad it"
        )
