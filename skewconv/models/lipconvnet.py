"""LipConvnet: the provably 1-Lipschitz network of the paper (Section 6.5, Table 1)."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from skewconv.choices import ActivationName, ConvName, HeadName, PaddingMode
from skewconv.errors import ArgumentError
from skewconv.models.classifier import Classifier
from skewconv.models.parts import ACTIVATIONS, CIFAR10_STD, CONVOLUTIONS, HEADS, choose, default_mean
from skewconv.models.stages import FoldRow, ImageSize, ZeroRow, image_size, stages
from skewconv.nn import InvertibleDownsample, Normalize


class LipConvnet(Classifier):
    """LipConvnet-n: images in [0, 1] to logits, 1-Lipschitz but for the input normalisation.

    >>> import torch
    >>> import skewconv
    >>> model = LipConvnet(5, width=4).eval()
    >>> model(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> bound = skewconv.nn.lipschitz_upper_bound(model, (3, 32, 32))
    >>> 0.999 <= bound * 0.2507 <= 1.000001
    True

    Args:
        depth: number of convolutions for 32 x 32 images: a multiple of five. Other sizes have as many in each stage.
        num_classes: number of logits.
        width: channels of the first stage, doubled in each.
        conv: "soc", "bcop", "cayley", "aol", "sll" or "cpl"; the last two are residual, and change channels and
            resolution by a 1 x 1 SOC2d before them.
        activation: "maxmin" (the paper's), "groupsort", "householder" or "householder2".
        head: "orthogonal" (orthonormal rows), "normalized" (rows of length one), or "conv": a 1 x 1 convolution of the
            network's own kind, as in the authors' code.
        padding_mode: "zeros" or "circular"; BCOP and Cayley are always circular.
        in_channels: channels of the images.
        input_size: side of the images, or (height, width); see :func:`skewconv.models.stages.stages`.
        mean, std: of the images, numbers or one for each channel. They are applied by the first module, so that
            bounds and radii are in pixel units.
        conv_options: further arguments of every convolution. The ``norm_bound`` of SOC is that of the 3 x 3 filters:
            those of one tap stay at 1.
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
        input_size: ImageSize = 32,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] = CIFAR10_STD,
        conv_options: dict[str, Any] | None = None,
    ) -> None:
        if conv == "standard":
            others = ", ".join(repr(name) for name in CONVOLUTIONS if name != "standard")
            raise ArgumentError(f"conv='standard' is not 1-Lipschitz; use one of {others}, or a ResNet")
        build, activate = choose("conv", CONVOLUTIONS, conv), choose("activation", ACTIVATIONS, activation)

        build_head, options = choose("head", HEADS, head), dict(conv_options or {})
        features = in_channels

        def layers() -> Iterator[nn.Module]:
            nonlocal features
            yield Normalize(default_mean(in_channels) if mean is None else mean, std)
            for row in itertools.chain(*stages(depth, width, input_size)):
                if isinstance(row, ZeroRow):
                    yield nn.ZeroPad2d((0, row.columns, 0, row.rows))
                elif isinstance(row, FoldRow):
                    yield InvertibleDownsample(tuple(row))
                    features *= row.height * row.width
                else:
                    yield build(features, row.channels, row.kernel, row.stride, padding_mode, options)
                    yield activate(row.channels)
                    features = row.channels
            if head != "conv":
                yield nn.Flatten()

        body = nn.Sequential(*layers())
        last = build_head(features, num_classes, lambda c_in, c_out: build(c_in, c_out, 1, 1, padding_mode, options))
        super().__init__(body, last, in_channels, image_size(input_size))
        self.depth, self.num_classes, self.width = depth, num_classes, width
        self.input_size, self.features = input_size, features
