"""What a network for images takes, said before a layer deep inside complains of something else."""

from torch import Tensor

from skewconv.errors import DtypeError, ShapeError


def check_images(x: Tensor, in_channels: int, size: int | None) -> None:
    """Refuse what is no batch of images for this network.

    Args:
        x: should be (n, in_channels, h, w), floating.
        in_channels: of the network.
        size: the side of its images; None if it takes several.
    """
    side = "h, w" if size is None else f"{size}, {size}"
    expected = f"expected (n, {in_channels}, {side}) in [0, 1]"
    if not x.is_floating_point():
        raise DtypeError(f"{expected}, got {x.dtype}: divide pixels from 0 to 255 by 255")
    if x.dim() == 3:
        raise ShapeError(f"{expected}, got {tuple(x.shape)}: give a batch, such as x[None]")
    if x.dim() != 4 or x.shape[1] != in_channels or (size is not None and x.shape[2:] != (size, size)):
        raise ShapeError(f"{expected}, got {tuple(x.shape)}: resize the images, or build the network for this size")
