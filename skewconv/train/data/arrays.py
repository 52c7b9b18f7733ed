"""Images that are in memory already, as a dataset."""

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from skewconv.choices import ARRAYS
from skewconv.train.data.dataset import Augmentation, Dataset, Images, Labels, Split
from skewconv.train.data.errors import DataError
from skewconv.train.data.moments import moments

#: (images, labels) as arrays or tensors, or anything with a length whose items are (image, label)
Pairs: TypeAlias = Any


def dataset_from_arrays(
    train: Pairs, test: Pairs, *, classes: Sequence[str] | None = None, augmentation: Augmentation | None = None
) -> Dataset:
    """A dataset of images in memory.

    >>> images, labels = np.zeros((8, 1, 28, 28), np.uint8), np.arange(8) % 2
    >>> dataset_from_arrays((images, labels), (images[:4], labels[:4]))
    Dataset('arrays': 8 + 4 images 1 x 28 x 28, 2 classes)

    Args:
        train, test: each (images, labels): images (N, C, H, W) or (N, H, W), uint8, or floats in [0, 1] that are whole
            255ths; labels (N,), whole numbers from 0. Or a dataset of PyTorch whose items are (image, label).
        classes: their names; by default 0, 1, 2, ...
        augmentation: the random changes that keep the meaning of these images; by default none.
    """
    (x, y), (x_test, y_test) = (_arrays(name, value) for name, value in (("train", train), ("test", test)))
    if x.shape[1:] != x_test.shape[1:]:
        raise DataError(f"training images are {x.shape[1:]} and test images {x_test.shape[1:]}: make them alike")
    most = int(max(y.max(), y_test.max()))
    names = tuple(classes) if classes is not None else tuple(map(str, range(most + 1)))
    if most >= len(names) or len(names) < 2:
        raise DataError(f"labels go up to {most}, and there are {len(names)} classes: name at least two, and all")
    mean, std = moments(x)
    digest = hashlib.sha256(repr((x.shape, names)).encode())
    for array in (x, y, x_test, y_test):
        digest.update(np.ascontiguousarray(array).data)
    own = augmentation or Augmentation(padding=0, flip=False)
    return Dataset(ARRAYS, names, Split(x, y), Split(x_test, y_test), mean, std, own, digest.hexdigest()[:20])


def _arrays(name: str, value: Pairs) -> tuple[Images, Labels]:
    if not (isinstance(value, tuple | list) and len(value) == 2):
        if not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
            raise DataError(
                f"{name} is a {type(value).__name__}: (images, labels), or items (image, label), are needed"
            )
        items = [value[index] for index in range(len(value))]
        value = (np.stack([_numpy(image) for image, _ in items]), np.array([int(label) for _, label in items]))
    images, labels = (_numpy(each) for each in value)
    return _pixels(name, images), _labels(name, labels, len(images))


def _numpy(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _pixels(name: str, images: np.ndarray) -> Images:
    images = images[:, None] if images.ndim == 3 else images
    if images.ndim != 4 or not images.size:
        raise DataError(f"the {name} images have the shape {images.shape}: (N, C, H, W) or (N, H, W) is needed")
    if images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        raise DataError(
            f"the {name} images have the shape {images.shape}: put channels first, images.transpose(0, 3, 1, 2)"
        )
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    if not np.issubdtype(images.dtype, np.floating):
        raise DataError(f"the {name} images are {images.dtype}: uint8, or floats in [0, 1], are needed")
    levels = np.rint(images * 255)
    if not (np.isfinite(levels).all() and levels.min() >= 0 and levels.max() <= 255):
        raise DataError(
            f"the {name} images go from {images.min():g} to {images.max():g}: give uint8, or floats in [0, 1]"
        )
    if np.abs(images * 255 - levels).max() > 1e-2:
        raise DataError(
            f"the {name} images have values between 256 levels, which a dataset keeps: round them, "
            "np.rint(255 * images).astype(np.uint8), or train with a loop of your own"
        )
    return levels.astype(np.uint8)


def _labels(name: str, labels: np.ndarray, count: int) -> Labels:
    if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise DataError(
            f"the {name} labels are {labels.shape} {labels.dtype}: ({count},) whole numbers from 0 are needed"
        )
    return labels.astype(np.int64)
