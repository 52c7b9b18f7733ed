"""Pre-activation ResNets for CIFAR (He et al. 2016) with any convolution of this library, as in Tables 3 and 4."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from skewconv.checks import check_counts
from skewconv.choices import ConvName, PaddingMode, ResNetActivationName
from skewconv.errors import ArgumentError
from skewconv.models.parts import CIFAR10_STD, CONVOLUTIONS, RESNET_ACTIVATIONS, Classifier, choose, default_mean
from skewconv.nn import Normalize
from skewconv.nn.primitives import ResidualSum


class ResidualBlock(ResidualSum):
    """x -> s(a(x)) + r(a(x)) with a = activation o BatchNorm; the shortcut is x itself where the shape does not change.

    The convolutions of r have kernels (3, 3) in basic blocks, (1, 3, 1) in bottlenecks; the first 3 x 3 one has the
    stride. ``channels`` are those of the input, then of the output of each convolution, which
    ``conv(channels in, channels out, kernel, stride)`` builds.
    """

    def __init__(
        self,
        kernels: Sequence[int],
        channels: Sequence[int],
        stride: int,
        conv: Any,
        activate: Callable[[], nn.Module] = nn.ReLU,
    ) -> None:
        c_in, c_out = channels[0], channels[-1]
        layers: list[nn.Module] = []
        for i, kernel in enumerate(kernels):
            if i:
                layers += [nn.BatchNorm2d(channels[i]), activate()]
            layers.append(conv(channels[i], channels[i + 1], kernel, stride if i == len(kernels) // 3 else 1))
        shortcut = conv(c_in, c_out, 1, stride) if stride > 1 or c_in != c_out else None
        super().__init__(nn.Sequential(nn.BatchNorm2d(c_in), activate()), nn.Sequential(*layers), shortcut)

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> ResidualSum:
        return ResidualSum(self.activation, self.residual, self.shortcut)


class ResNet(Classifier):
    """Four stages of residual blocks behind a 3 x 3 stem; see :func:`resnet18`."""

    def __init__(
        self,
        blocks: Sequence[int],
        bottleneck: bool,
        num_classes: int = 10,
        *,
        conv: ConvName = "standard",
        activation: ResNetActivationName = "relu",
        width: int = 64,
        in_channels: int = 3,
        padding_mode: PaddingMode = "zeros",
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] = CIFAR10_STD,
        conv_options: dict[str, Any] | None = None,
    ) -> None:
        check_counts(width=width)
        builder, activate = choose("conv", CONVOLUTIONS, conv), choose("activation", RESNET_ACTIVATIONS, activation)
        if activation == "maxmin" and width % 2:
            raise ArgumentError(
                f"width must be even for activation='maxmin', which sorts pairs of channels; got {width}"
            )
        # BatchNorm follows every convolution but the last of a block, so none of them needs a bias.
        options = {"bias": False, **(conv_options or {})}

        def build(c_in: int, c_out: int, kernel: int, stride: int) -> nn.Module:
            return builder(c_in, c_out, kernel, stride, padding_mode, options)

        normalize = Normalize(default_mean(in_channels) if mean is None else mean, std)
        layers: list[nn.Module] = [normalize, build(in_channels, width, 3, 1)]
        channels = width
        for stage, count in enumerate(blocks):
            inner = width << stage
            kernels, widths = ((1, 3, 1), (inner, inner, 4 * inner)) if bottleneck else ((3, 3), (inner, inner))
            for index in range(count):
                stride = 2 if stage and not index else 1
                layers.append(ResidualBlock(kernels, (channels, *widths), stride, build, activate))
                channels = widths[-1]
        layers += [nn.BatchNorm2d(channels), activate(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(nn.Sequential(*layers), nn.Linear(channels, num_classes), in_channels)


def resnet18(num_classes: int = 10, **options: Any) -> ResNet:
    """ResNet-18: two basic blocks in each of four stages.

    >>> import torch
    >>> resnet18(conv="soc", width=4)(torch.rand(2, 3, 16, 16)).shape
    torch.Size([2, 10])

    Args:
        num_classes: number of logits.
        options: ``conv`` (a name in :data:`skewconv.models.parts.CONVOLUTIONS`), ``activation`` ("relu", "swish" or
            "maxmin"), ``width`` (64), ``in_channels`` (3), ``padding_mode``, ``mean``, ``std``, ``conv_options``. The
            image's sides must be divisible by 8.
    """
    return ResNet((2, 2, 2, 2), False, num_classes, **options)


def resnet34(num_classes: int = 10, **options: Any) -> ResNet:
    """ResNet-34: 3, 4, 6 and 3 basic blocks; arguments as in :func:`resnet18`."""
    return ResNet((3, 4, 6, 3), False, num_classes, **options)


def resnet50(num_classes: int = 10, **options: Any) -> ResNet:
    """ResNet-50: 3, 4, 6 and 3 bottleneck blocks; arguments as in :func:`resnet18`."""
    return ResNet((3, 4, 6, 3), True, num_classes, **options)
