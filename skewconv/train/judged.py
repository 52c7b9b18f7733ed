"""The images by which a trained network is judged: the same ones for every command that is told the same."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from skewconv.errors import ArgumentError
from skewconv.train.build import parts
from skewconv.train.data import Examples
from skewconv.train.evaluate import spread
from skewconv.train.run import Run

SplitName: TypeAlias = Literal["test", "validation"]


@dataclass(frozen=True)
class Judged:
    """Some images of a split, or all; `name` says which split, `of` how many it has."""

    examples: Examples
    name: SplitName
    of: int

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def title(self) -> str:
        """The images in words."""
        kind = {"test": "test images", "validation": "validation: held-out training images"}[self.name]
        return kind if len(self) == self.of else f"{kind}, of {self.of:,}"

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """(n, C, H, W) float32 in [0, 1] as training shows them, labels (n,), and their numbers in the split (n,)."""
        every = np.arange(len(self.examples))
        images, labels = self.examples.take(every)
        index = getattr(self.examples, "index", every)
        return torch.from_numpy(images).to(torch.float32).div_(255), torch.from_numpy(labels), torch.tensor(index)


def judged_images(run: Run, *, split: SplitName | None = None, images: int | None = None) -> Judged:
    """The images to judge a run by.

    Args:
        run: whose dataset is read, and checked to be the one it was trained on.
        split: test images, or the training images that the run held out; by default those it was judged by in training.
        images: how many of them, evenly spread; all by default.
    """
    if images is not None and images < 1:
        raise ArgumentError(f"--images is {images}: it must be at least 1")
    data = run.dataset()
    chosen = parts(run.config, data)
    name, examples = ("test", data.test) if split == "test" else (chosen.name, chosen.judged)
    if split not in (None, name):
        raise ArgumentError(f"--split is {split!r}, but {run.path} held no images out: train with --holdout")
    return Judged(spread(examples, images), name, len(examples))
