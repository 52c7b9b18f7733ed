"""Augmentation of whole batches, on their device: index arithmetic, no loop over images."""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from skewconv.errors import ArgumentError, ShapeError


def random_crop(images: Tensor, padding: int = 4, generator: Generator | None = None) -> Tensor:
    """Pad with black on all sides and cut each image back to its size at a place of its own.

    >>> import torch
    >>> random_crop(torch.ones(2, 3, 32, 32), padding=4, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])

    Args:
        images: (N, C, H, W), any dtype.
        padding: the largest shift, in pixels, up, down, left and right.
        generator: where the shifts come from; they depend on it alone, not on the device of the images.

    Returns:
        (N, C, H, W), new memory unless padding is 0.
    """
    _check(images)
    if padding < 0:
        raise ArgumentError(f"padding is {padding}: it must be 0 or more")
    return crop_at(images, crop_offsets(len(images), padding, generator), padding)


def random_flip(images: Tensor, generator: Generator | None = None) -> Tensor:
    """Mirror each image left to right with probability one half.

    Args:
        images: (N, C, H, W), any dtype.
        generator: where the choices come from.

    Returns:
        (N, C, H, W), new memory.
    """
    _check(images)
    return flip_where(images, flip_choices(len(images), generator))


def crop_offsets(count: int, padding: int, generator: Generator | None) -> Tensor:
    """(count, 2) rows and columns, uniform over 0 .. 2 padding, at which to cut the padded images."""
    return torch.randint(0, 2 * padding + 1, (count, 2), generator=generator, device=_device(generator))


def flip_choices(count: int, generator: Generator | None) -> Tensor:
    """(count,) whether to mirror, each with probability one half."""
    return torch.randint(0, 2, (count,), generator=generator, device=_device(generator)).bool()


def crop_at(images: Tensor, offsets: Tensor, padding: int) -> Tensor:
    """Cut the padded images at the given offsets.

    Args:
        images: (N, C, H, W).
        offsets: (N, 2) row and column, 0 .. 2 padding; `padding` itself leaves an image where it is.
        padding: as the offsets were drawn for.
    """
    if padding == 0:
        return images
    height, width = images.shape[2:]
    rows, columns = to_device(offsets, images.device).unbind(1)
    # Every window is a view of the padded images; one indexing picks one window an image.
    windows = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(images), device=images.device), :, rows, columns]


def flip_where(images: Tensor, choices: Tensor) -> Tensor:
    """Mirror the images (N, C, H, W) for which the choice (N,) is true."""
    return torch.where(to_device(choices, images.device)[:, None, None, None], images.flip(3), images)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device; from pinned memory a copy runs beside the computation, and the host waits for nothing."""
    if values.device.type != "cpu" or device.type in ("cpu", "mps"):
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def _device(generator: Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device


def _check(images: Tensor) -> None:
    if images.dim() != 4:
        raise ShapeError(f"images have the shape {tuple(images.shape)}: (N, C, H, W) is needed")
