"""LipConvnet: the provably 1-Lipschitz network of the paper (Section 6.5, Table 1), for images of any size.

========== ================================================ =========================================================
32 x 32    16, 8, 4, 2, 1                                   the table, literally
28 x 28    14, 7, then 1                                    7 is odd: the last stage keeps it, then folds it
96 x 128   48 x 64, 24 x 32, 12 x 16, 6 x 8, 3 x 4, then 1  likewise
100 x 100  50, 25 + 1, 13 + 1, 7, then 1                    a large odd side gets a line of zeros, and is halved
========== ================================================ =========================================================
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import nn

from skewconv.choices import ActivationName, ConvName, HeadName, PaddingMode
from skewconv.errors import ArgumentError
from skewconv.models.parts import ACTIVATIONS, CIFAR10_STD, CONVOLUTIONS, HEADS, Classifier, choose, default_mean
from skewconv.nn import InvertibleDownsample, Normalize

ImageSize: TypeAlias = int | Sequence[int]

# Channels double with every stage, up to 32 times the width as in the paper: filters grow with their square.
_LAST_CHANNELS = 32
# The largest filter of the paper: four pixels with 16 times the width each, folded into one.
_FOLDED_CHANNELS = 64
# Odd sides up to this one are folded in the end, larger ones are padded and halved: 224 = 7 * 32, 28 = 7 * 4.
_LARGEST_FOLDED_SIDE = 7


class ConvRow(NamedTuple):
    """One row of Table 1: conv [kernel x kernel, channels, stride]."""

    kernel: int
    channels: int
    stride: int


class ZeroRow(NamedTuple):
    """Rows of zeros below the image, and columns to its right: 0 or 1 each."""

    rows: int
    columns: int


class FoldRow(NamedTuple):
    """All pixels of an image of this size become channels of one."""

    height: int
    width: int


Row: TypeAlias = ConvRow | ZeroRow | FoldRow


def image_size(size: ImageSize) -> tuple[int, int]:
    """(height, width) of images given by their side, or by both."""
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    good = len(sides) == 2 and all(type(side) is int and side >= 2 for side in sides)
    _check("input_size", size, good, "an integer, or a height and a width, of at least 2")
    height, width = sides
    return height, width


def stages(depth: int, width: int = 32, input_size: ImageSize = 32) -> list[list[Row]]:
    """The stages of LipConvnet-n: n/5 - 1 convolutions, then one of stride two; the very last has a 1 x 1 kernel.

    Each stage halves the image while both sides are even. Where an odd side is left, the convolutions of the last stage
    have stride one, and as few channels in the end as make no filter larger than the paper's; then all pixels become
    channels of one, and a last 1 x 1 convolution mixes them. Folding is a permutation, and so loses nothing.

    >>> print(*stages(5, 16, 28)[-1])  # 20 * 7 * 7 <= 64 * 16
    ConvRow(kernel=3, channels=20, stride=1) FoldRow(height=7, width=7) ConvRow(kernel=1, channels=512, stride=1)
    """
    _check("depth", depth, type(depth) is int and depth % 5 == 0 and depth >= 5, "a multiple of 5 and at least 5")
    _check("width", width, type(width) is int and width % 2 == 0 and width >= 2, "even and at least 2")
    found: list[list[Row]] = []
    size, repeats = image_size(input_size), depth // 5 - 1
    while size != (1, 1):
        narrow, wide = (width * min(1 << (len(found) + more), _LAST_CHANNELS) for more in (0, 1))
        before: list[Row] = [ConvRow(3, narrow, 1)] * repeats
        even = all(side % 2 == 0 for side in size)
        if not even and (min(size) == 1 or max(size) <= _LARGEST_FOLDED_SIDE):
            pixels = size[0] * size[1]
            # Activations sort pairs of channels: their number is even.
            kept = max(2, min(wide, _FOLDED_CHANNELS * width // pixels) // 2 * 2)
            features = min(_LAST_CHANNELS * width, kept * pixels)
            found.append([*before, ConvRow(3, kept, 1), FoldRow(*size), ConvRow(1, features, 1)])
            break
        zeros: list[Row] = [ZeroRow(size[0] % 2, size[1] % 2)] if size[0] % 2 or size[1] % 2 else []
        size = ((size[0] + 1) // 2, (size[1] + 1) // 2)
        found.append([*zeros, *before, ConvRow(1 if size == (1, 1) else 3, wide, 2)])
    return found


def _check(name: str, value: object, good: bool, rule: str) -> None:
    if not good:
        raise ArgumentError(f"{name} must be {rule}; got {value!r}")


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
        input_size: side of the images, or (height, width); see :func:`skewconv.models.lipconvnet.stages`.
        circular_from: least side of the images that a convolution pads circularly, where training is faster: at a
            frequency it is one small matrix. None: as ``padding_mode`` says.
        mean, std: of the images, numbers or one for each channel. They are applied by the first module, so that
            bounds and radii are in pixel units.
        conv_options: further arguments of every convolution. The ``norm_bound`` of SOC is that of the 3 x 3 filters;
            ``norm_bound_1x1`` is that of the filters of one tap.
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
        circular_from: int | None = None,
        conv_options: dict[str, Any] | None = None,
    ) -> None:
        if conv == "standard":
            others = ", ".join(repr(name) for name in CONVOLUTIONS if name != "standard")
            raise ArgumentError(f"conv='standard' is not 1-Lipschitz; use one of {others}, or a ResNet")
        build, activate = choose("conv", CONVOLUTIONS, conv), choose("activation", ACTIVATIONS, activation)

        build_head, options = choose("head", HEADS, head), dict(conv_options or {})
        good = circular_from is None or (type(circular_from) is int and circular_from >= 1)
        _check("circular_from", circular_from, good, "None, or an integer of at least 1")
        features, size = in_channels, image_size(input_size)
        least = math.inf if circular_from is None else circular_from

        def layers() -> Iterator[nn.Module]:
            nonlocal features, size
            yield Normalize(default_mean(in_channels) if mean is None else mean, std)
            for row in itertools.chain(*stages(depth, width, input_size)):
                if isinstance(row, ZeroRow):
                    yield nn.ZeroPad2d((0, row.columns, 0, row.rows))
                    size = (size[0] + row.rows, size[1] + row.columns)
                elif isinstance(row, FoldRow):
                    yield InvertibleDownsample(tuple(row))
                    features, size = features * row.height * row.width, (1, 1)
                else:
                    size = (size[0] // row.stride, size[1] // row.stride)
                    mode: PaddingMode = "circular" if min(size) >= least else padding_mode
                    yield build(features, row.channels, row.kernel, row.stride, mode, options)
                    yield activate(row.channels)
                    features = row.channels
            if head != "conv":
                yield nn.Flatten()

        body = nn.Sequential(*layers())
        last = build_head(features, num_classes, lambda c_in, c_out: build(c_in, c_out, 1, 1, padding_mode, options))
        super().__init__(body, last, in_channels, image_size(input_size))
        self.depth, self.num_classes, self.width = depth, num_classes, width
        self.input_size, self.features = input_size, features
