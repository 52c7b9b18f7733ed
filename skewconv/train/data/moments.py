"""The mean and the deviation of images, by which a network normalises its input."""

import numpy as np

from skewconv.train.data.dataset import Images


def moments(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation a channel in [0, 1], exact: from counts of the 256 values, not from a running sum."""
    values = np.arange(256) / 255
    mean, std = [], []
    for channel in range(images.shape[1]):
        counts = sum(
            np.bincount(images[start : start + 4096, channel].reshape(-1), minlength=256)
            for start in range(0, len(images), 4096)
        )
        share = counts / np.sum(counts)
        centre = float(share @ values)
        mean.append(centre)
        std.append(float(np.sqrt(share @ (values - centre) ** 2)))
    return tuple(mean), tuple(std)
