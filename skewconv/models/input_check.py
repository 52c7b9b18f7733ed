"""What a network for images takes, said before a layer deep inside complains of something else.

Shapes and kinds are checked in every call. Values are looked at in eval mode on the CPU only: elsewhere that would make
the host wait for the device, and a training step never does.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn

from skewconv.errors import ArgumentError, DtypeError, ShapeError
from skewconv.ops.torch_modes import tracing

# Pixels from 0 to 255 are above this somewhere, and negative nowhere; noise and searches for the worst input, which may
# lead far out of [0, 1], are negative somewhere.
_FAR_ABOVE_ONE = 16.0


_thread = threading.local()


@contextmanager
def any_values() -> Iterator[None]:
    """Networks that this thread calls inside take any values: whoever asks has looked at them already."""
    before = getattr(_thread, "any_values", False)
    _thread.any_values = True
    try:
        yield
    finally:
        _thread.any_values = before


def check_images(network: nn.Module, x: Any, in_channels: int | None, size: tuple[int, int] | None = None) -> None:
    """Refuse what is no batch of images for this network.

    Args:
        network: whose first module is the normalisation of the images.
        x: should be (n, in_channels, h, w), floating, in [0, 1].
        in_channels: of the network; None if that is not known.
        size: (h, w) of its images; None if it takes several.
    """
    # A tuple: the compiler of torch 2.6 does not know unions.
    if not isinstance(x, (Tensor, np.ndarray)):
        return  # a tracer of torch.fx puts something else in the place of the images
    sides = "h, w" if size is None else f"{size[0]}, {size[1]}"
    expected = f"expected (n, {in_channels or 'c'}, {sides}) in [0, 1]"
    if not isinstance(x, Tensor):
        raise DtypeError(f"{expected}, got a NumPy array of {x.dtype}: use torch.from_numpy, and divide by 255")
    if not x.is_floating_point():
        raise DtypeError(f"{expected}, got {x.dtype}: divide pixels from 0 to 255 by 255")
    if x.dim() == 3:
        raise ShapeError(f"{expected}, got {tuple(x.shape)}: give a batch, such as x[None]")
    wrong_channels = in_channels is not None and x.dim() == 4 and x.shape[1] != in_channels
    if x.dim() != 4 or wrong_channels or (size is not None and tuple(x.shape[2:]) != size):
        raise ShapeError(f"{expected}, got {tuple(x.shape)}: resize the images, or build the network for this size")
    if _is_far_above_one(network, x):
        raise ArgumentError(
            f"{expected}, got values up to {float(x.amax()):g}: divide pixels from 0 to 255 by 255, or build the "
            "network with the mean and std of such images"
        )


def _is_far_above_one(network: nn.Module, x: Tensor) -> bool:
    """Whether these are pixels from 0 to 255 for a network that was built for [0, 1]."""
    if network.training or x.device.type != "cpu" or type(x) not in (Tensor, nn.Parameter) or not x.numel():
        return False
    if tracing() or getattr(_thread, "any_values", False):
        return False
    smallest, largest = map(float, x.detach().aminmax())
    if smallest < 0 or not largest > _FAR_ABOVE_ONE:
        return False
    # Who gives a mean above 1 has images in other units, and means it.
    means = [value for name, value in network.named_buffers() if name.endswith("mean")]
    return bool(means) and float(means[0].max()) <= 1
