"""LipConvnet: the provably 1-Lipschitz network of the paper (Section 6.5, Table 1)."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from skewconv.checks import PaddingMode
from skewconv.choices import ActivationName, ConvName, HeadName
from skewconv.errors import ArgumentError
from skewconv.models.input_check import check_images
from skewconv.models.parts import (
    ACTIVATIONS,
    CIFAR10_STD,
    CONVOLUTIONS,
    HEADS,
    choose,
    default_mean,
)
from skewconv.models.summary import Summary, summary
from skewconv.nn import Normalize, lipschitz_upper_bound
from skewconv.nn.memory_format import inside_a_network
from skewconv.nn.protocol import Links, storable
from skewconv.nn.protocol.stored import Children, Settings, Tensors, assembled, attributes_of
from skewconv.ops.torch_modes import tracing


class ConvRow(NamedTuple):
    """One row of Table 1: conv [kernel x kernel, channels, stride]."""

    kernel: int
    channels: int
    stride: int


def table_1(depth: int, width: int = 32, input_size: int = 32) -> list[list[ConvRow]]:
    """The stages of LipConvnet-n: n/5 - 1 convolutions, then one of stride two; the very last has a 1 x 1 kernel.

    >>> for stage in table_1(10):
    ...     print(*stage)
    ConvRow(kernel=3, channels=32, stride=1) ConvRow(kernel=3, channels=64, stride=2)
    ConvRow(kernel=3, channels=64, stride=1) ConvRow(kernel=3, channels=128, stride=2)
    ConvRow(kernel=3, channels=128, stride=1) ConvRow(kernel=3, channels=256, stride=2)
    ConvRow(kernel=3, channels=256, stride=1) ConvRow(kernel=3, channels=512, stride=2)
    ConvRow(kernel=3, channels=512, stride=1) ConvRow(kernel=1, channels=1024, stride=2)

    Args:
        depth: n, a multiple of five: the number of convolutions for images of size 32.
        width: channels of the first stage.
        input_size: a power of two; each stage halves it until one pixel is left, so 8 has three stages and 64 six.
    """
    _check("depth", depth, depth % 5 == 0 and depth >= 5, "a multiple of 5 and at least 5")
    _check("width", width, width % 2 == 0 and width >= 2, "even and at least 2")
    power_of_two = input_size >= 2 and math.log2(input_size).is_integer()
    _check("input_size", input_size, power_of_two, "a power of two and at least 2: resize or pad the images")
    stages = input_size.bit_length() - 1
    return [
        [ConvRow(3, width << i, 1)] * (depth // 5 - 1) + [ConvRow(3 if i < stages - 1 else 1, width << (i + 1), 2)]
        for i in range(stages)
    ]


def _check(name: str, value: int, good: bool, rule: str) -> None:
    if not good or not isinstance(value, int):
        raise ArgumentError(f"{name} must be {rule}; got {value!r}")


@storable()
class LipConvnet(nn.Module):
    """LipConvnet-n: images in [0, 1] to logits, 1-Lipschitz but for the input normalisation.

    >>> import torch
    >>> model = LipConvnet(5, width=4).eval()
    >>> model(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> bound = lipschitz_upper_bound(model, (3, 32, 32))
    >>> 0.999 <= bound * 0.2507 <= 1.000001
    True

    Args:
        depth: number of convolutions for 32 x 32 images: a multiple of five. Other sizes have as many in each stage.
        num_classes: number of logits.
        width: channels of the first stage, doubled in each.
        conv: "soc", "bcop", "cayley", "aol", "sll" or "cpl"; the last two are residual, and change channels and
            resolution by a 1 x 1 SOC2d before them.
        activation: "maxmin" (the paper's), "groupsort", "householder" or "householder2".
        head: "orthogonal" (orthonormal rows) or "normalized" (rows of length one).
        padding_mode: "zeros" or "circular"; BCOP and Cayley are always circular.
        in_channels: channels of the images.
        input_size: side of the images, a power of two.
        mean, std: of the images, numbers or one for each channel. They are applied by the first module, so that
            bounds and radii are in pixel units.
        conv_options: further arguments of every convolution.
    """

    def __init__(
        self,
        depth: int,
        num_classes: int = 10,
        *,
        width: int = 32,
        conv: ConvName = "soc",
        activation: ActivationName = "maxmin",
        head: HeadName = "orthogonal",
        padding_mode: PaddingMode = "zeros",
        in_channels: int = 3,
        input_size: int = 32,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] = CIFAR10_STD,
        conv_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if conv == "standard":
            others = ", ".join(repr(name) for name in CONVOLUTIONS if name != "standard")
            raise ArgumentError(f"conv='standard' is not 1-Lipschitz; use one of {others}, or a ResNet")
        self.depth, self.num_classes, self.width = depth, num_classes, width
        self.in_channels, self.input_size = in_channels, input_size
        build, activate = choose("conv", CONVOLUTIONS, conv), choose("activation", ACTIVATIONS, activation)

        def layers() -> Iterator[nn.Module]:
            yield Normalize(default_mean(in_channels) if mean is None else mean, std)
            channels = in_channels
            for stage in table_1(depth, width, input_size):
                for kernel, out, stride in stage:
                    yield build(channels, out, kernel, stride, padding_mode, conv_options or {})
                    yield activate(out)
                    channels = out
            yield nn.Flatten()

        self.body = nn.Sequential(*layers())
        self.features = table_1(depth, width, input_size)[-1][-1].channels
        self.head = choose("head", HEADS, head)(self.features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_channels, side, side) in [0, 1] -> (batch, num_classes)."""
        # A tracer of torch.fx puts something else in the place of the images.
        if isinstance(x, Tensor):
            check_images(x, self.in_channels, self.input_size)
        if tracing():
            return self.head(self.body(x))
        with inside_a_network():
            return self.head(self.body(x))

    def lipschitz_upper_bound(self, input_shape: tuple[int, ...]) -> float:
        """The product of the layers' bounds."""
        return lipschitz_upper_bound(nn.Sequential(self.body, self.head), input_shape)

    def links(self) -> Links:
        """The body, then the head."""
        return [("body", self.body), ("head", self.head)]

    def settings(self) -> dict[str, Any]:
        """What a file holds of it, beside its body and head."""
        return attributes_of("depth", "num_classes", "width", "in_channels", "input_size", "features")(self)

    @classmethod
    def from_settings(cls, settings: Settings, tensors: Tensors, children: Children) -> "LipConvnet":
        """The network again, from a body and a head that may be frozen."""
        return assembled(cls, settings, children)

    def summary(self) -> Summary:
        """Each layer's output shape, parameters, operations and Lipschitz bound; print it."""
        return summary(self, (self.in_channels, self.input_size, self.input_size))
