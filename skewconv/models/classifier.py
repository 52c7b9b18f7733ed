"""What the networks for images share: a body, a head, and a check of what they are given.

Values are looked at in eval mode on the CPU only: elsewhere that would make the host wait for the device.
"""

from typing import Any

import numpy as np
from torch import Tensor, nn

from skewconv.errors import ArgumentError, DtypeError, ShapeError
from skewconv.nn.lowering import sequence
from skewconv.ops.torch_modes import between_layers, tracing

# Pixels from 0 to 255 are above this somewhere, and negative nowhere; noise and searches for the worst input, which may
# lead far out of [0, 1], are negative somewhere.
_FAR_ABOVE_ONE = 16.0


class Classifier(nn.Module):
    """Images in [0, 1] to logits: a body whose first module normalises the images, then a head.

    The images have ``in_channels`` channels and the size ``image_size``, (h, w), or any size if that is None.
    """

    def __init__(
        self, body: nn.Sequential, head: nn.Module, in_channels: int, image_size: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.in_channels, self.image_size = in_channels, image_size
        between_layers(self)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_channels, height, width) in [0, 1] -> (batch, num_classes)."""
        self._check(x)
        return self.head(self.body(x))

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> nn.Module:
        return sequence(body=self.body, head=self.head)

    def _check(self, x: Any) -> None:
        # A tuple: the compiler of torch 2.6 does not know unions.
        if not isinstance(x, (Tensor, np.ndarray)):
            return  # a tracer of torch.fx puts something else in the place of the images
        sides = "h, w" if self.image_size is None else f"{self.image_size[0]}, {self.image_size[1]}"
        expected = f"expected (n, {self.in_channels}, {sides}) in [0, 1]"
        if not isinstance(x, Tensor):
            raise DtypeError(f"{expected}, got a NumPy array of {x.dtype}: use torch.from_numpy, and divide by 255")
        if not x.is_floating_point():
            raise DtypeError(f"{expected}, got {x.dtype}: divide pixels from 0 to 255 by 255")
        if x.dim() == 3:
            raise ShapeError(f"{expected}, got {tuple(x.shape)}: give a batch, such as x[None]")
        wrong_channels = x.dim() == 4 and x.shape[1] != self.in_channels
        wrong_size = self.image_size is not None and tuple(x.shape[2:]) != self.image_size
        if x.dim() != 4 or wrong_channels or wrong_size:
            raise ShapeError(f"{expected}, got {tuple(x.shape)}: resize the images, or build the network for this size")
        if not self.training and x.device.type == "cpu" and x.numel() and self._is_far_above_one(x):
            raise ArgumentError(
                f"{expected}, got values up to {float(x.amax()):g}: divide pixels from 0 to 255 by 255, or build the "
                "network with the mean and std of such images"
            )

    def _is_far_above_one(self, x: Tensor) -> bool:
        """True for pixels from 0 to 255 where the network was built for [0, 1]."""
        if tracing() or type(x) not in (Tensor, nn.Parameter) or getattr(self, "_takes_any_values", False):
            return False
        smallest, largest = map(float, x.detach().aminmax())
        if smallest < 0 or not largest > _FAR_ABOVE_ONE:
            return False
        # Who gives a mean above 1 has images in other units, and means it.
        means = [value for name, value in self.named_buffers() if name.endswith("mean")]
        return bool(means) and float(means[0].max()) <= 1
