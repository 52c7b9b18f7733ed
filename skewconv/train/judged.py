"""The images by which a trained network is judged: the same ones for every command that is told the same."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skewconv.choices import FOLDER, SplitName
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.progress import Tick
from skewconv.train.build import DataFacts, load_data, parts
from skewconv.train.data import Dataset, Examples, spread
from skewconv.train.data.folder import labelled_pictures
from skewconv.train.data.images import to_input
from skewconv.train.run import Run


@dataclass(frozen=True)
class Judged:
    """Some images of a split, or all; `name` says which split, `of` how many it has, `data` where they are from."""

    examples: Examples
    name: str
    of: int
    data: str

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def title(self) -> str:
        """The images in words."""
        kinds = {"test": "test images", "validation": "validation: held-out training images"}
        kind = kinds.get(self.name, f"images of {self.data}")
        return kind if len(self) == self.of else f"{kind}, of {self.of:,}"

    @property
    def files(self) -> tuple[str, ...] | None:
        """The names of the files, where the images are files."""
        return self.examples.files

    def facts(self) -> dict[str, str]:
        """What a record says of them."""
        if self.name in ("test", "validation"):
            return {"split": self.name}
        # Records are published: the folder's own name says enough.
        return {"split": self.name, "data": f"{FOLDER}{Path(self.data.removeprefix(FOLDER)).name}"}

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """(n, C, H, W) float32 in [0, 1] as training shows them, labels (n,), and their numbers in the split (n,)."""
        every = np.arange(len(self.examples))
        images, labels = self.examples.take(every)
        index = getattr(self.examples, "index", every)
        return to_input(images), torch.from_numpy(labels), torch.tensor(index)


def judged_images(
    run: Run,
    *,
    split: SplitName | None = None,
    images: int | None = None,
    data: str | None = None,
    skip_bad: bool = False,
    progress: Tick | None = None,
) -> Judged:
    """The images to judge a run by.

    Args:
        run: whose dataset is read, and checked to be the one it was trained on.
        split: test images, or the training images that the run held out; by default those it was judged by in training.
        images: how many of them, evenly spread; all by default.
        data: folder:PATH with other pictures of the same classes, or with the run's own images in another place.
        skip_bad: leave out files of that folder that cannot be read, and say so.
        progress: called for each picture that is read there.
    """
    if images is not None and images < 1:
        raise ArgumentError(f"--images is {images}: it must be at least 1")
    if skip_bad and data is None:
        raise ArgumentError("--skip-bad is for --data folder:PATH: give both")
    own = run.dataset() if data is None else _moved(run, data)
    if own is None:
        if split is not None:
            raise ArgumentError(f"--split is {split!r}, but {data} is another folder than the run's: leave it out")
        assert data is not None
        channels, height, width = run.input_shape
        options: dict[str, Any] = {
            "resize": run.config.loading.size is not None,
            "skip_bad": skip_bad,
            "progress": progress,
        }
        pictures = labelled_pictures(data, run.data.classes, (channels, height, width), **options)
        return Judged(spread(pictures, images), "pictures", len(pictures), data)
    chosen = parts(run.config, own)
    name, examples = ("test", own.test) if split == "test" else (chosen.name, chosen.judged)
    if split not in (None, name):
        raise ArgumentError(f"--split is {split!r}, but {run.name} held no images out: train with --holdout")
    return Judged(spread(examples, images), name, len(examples), own.name)


def _moved(run: Run, data: str) -> Dataset | None:
    """The run's own dataset in the folder it was moved to; None if the folder holds other pictures."""
    if not run.config.data.startswith(FOLDER) or not data.startswith(FOLDER):
        return None
    try:
        found = load_data(replace(run.config, data=data))
    except SkewconvError:
        return None
    return found if run.data.agrees(DataFacts.of(found)) else None
