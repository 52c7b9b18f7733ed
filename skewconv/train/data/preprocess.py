"""From pictures to the input of a network: the one transform of training, prediction and export."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from skewconv.train.data.decoding import read_picture


def preprocess(pictures: Sequence[Path | str | bytes], shape: tuple[int, int, int], *, resize: bool = False) -> Tensor:
    """(n, C, H, W) float32 in [0, 1]: what a network of images of that shape sees of these pictures.

    Each is turned upright, laid on white where it is transparent, made grey or coloured as the shape says, and divided
    by 255. The mean and deviation of the images are the network's own business.

    Args:
        pictures: files, or their bytes.
        shape: (C, H, W), such as ``open_run(path).input_shape``.
        resize: fit pictures of other sizes by the shorter side and crop the centre; else they are refused.
    """
    sources = [Path(picture) if isinstance(picture, str) else picture for picture in pictures]
    names = [f"picture {number}" if isinstance(each, bytes) else str(each) for number, each in enumerate(sources)]
    pixels = [read_picture(each, name, shape, resize=resize) for each, name in zip(sources, names, strict=True)]
    return to_input(np.stack(pixels) if pixels else np.empty((0, *shape), np.uint8))


def to_input(pixels: np.ndarray) -> Tensor:
    """(n, C, H, W) float32 in [0, 1] from pixels of the same shape, uint8."""
    return torch.from_numpy(np.ascontiguousarray(pixels)).to(torch.float32).div_(255)
