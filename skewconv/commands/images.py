"""The images that the commands on a run speak of."""

import torch
from torch import Tensor

from skewconv.errors import ArgumentError
from skewconv.train.run import Run


def run_images(run: Run, limit: int | None) -> tuple[Tensor, Tensor]:
    """The test images of a run, (n, C, H, W) float32 in [0, 1], and their labels (n,): as training shows them."""
    if limit is not None and limit < 1:
        raise ArgumentError(f"limit is {limit}: it must be at least 1")
    split = run.dataset().test
    images = torch.tensor(split.images[:limit]).to(torch.float32).div_(255)
    return images, torch.tensor(split.labels[:limit])
