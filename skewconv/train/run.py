"""Runs on disk: the config, the network and the dataset of a folder or a checkpoint, and images to evaluate it on."""

import contextlib
import os
import shlex
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skewconv._version import __version__
from skewconv.choices import FOLDER, SplitName
from skewconv.config import TrainConfig
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.progress import Tick
from skewconv.records import RecordError, read_record
from skewconv.train.checkpoint import Checkpoint, DataFacts, Position, build_model, check_data
from skewconv.train.data import DataError, Dataset, Split, load_data
from skewconv.train.data.dataset import make_splits, spread
from skewconv.train.data.images import labelled_pictures, to_input
from skewconv.train.environment import FILE, RECORD, certificates_of, existing_checkpoint, is_shipped, record_beside


@dataclass(frozen=True)
class Run:
    """An opened run: see :func:`open_run`."""

    path: Path
    checkpoint: Checkpoint

    @property
    def name(self) -> str:
        """The word for it on the command line: its folder, a file, or its name in the package."""
        file = self.checkpoint.path
        if is_shipped(file):
            return file.stem
        return str(self.path if file.name == FILE else file)

    @property
    def config(self) -> TrainConfig:
        return self.checkpoint.header.config

    @property
    def data(self) -> DataFacts:
        return self.checkpoint.header.data

    @property
    def position(self) -> Position:
        return self.checkpoint.header.position

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.data.image_shape

    @cached_property
    def model(self) -> nn.Module:
        """The trained network, ready for inference: in eval mode, without gradients, on the CPU."""
        # Initialising draws random numbers only to overwrite them: the caller's generator is left alone.
        with torch.random.fork_rng(devices=[]):
            model = build_model(self.config, self.data).eval()
        self.checkpoint.restore_model(model)
        # Beside the weights: what was measured of them, for predictions. They compare the hash.
        with contextlib.suppress(RecordError):
            record = read_record(certificates_of(self.checkpoint.path))
            if record["versions"].get("skewconv") == __version__:
                vars(model)["certified_results"] = record["results"]
        return model.requires_grad_(False)

    def dataset(self) -> Dataset:
        place = self.config.data.removeprefix(FOLDER)
        if place != self.config.data and not Path(place).expanduser().is_dir():
            raise DataError(
                f"the images of {self.name} were in {place}, which is not there: move the folder back, or name its new "
                "place with --data folder:PATH"
            )
        data = load_data(self.config)
        check_data(data, self.data)
        return data

    @property
    def unfinished(self) -> str | None:
        """A sentence on a run that has not ended; None if it has."""
        if self.position.finished:
            return None
        again = f"skewconv train --resume --out {shlex.quote(str(self.path))}"
        return f"{self.name} has not ended: these are the weights of step {self.position.step}; continue with {again}"

    @property
    def record_path(self) -> Path:
        file = self.checkpoint.path
        return self.path / RECORD if file.name == FILE else record_beside(file)

    def record(self) -> dict[str, Any]:
        return read_record(self.record_path)


def open_run(path: str | os.PathLike[str]) -> Run:
    """A run from its folder, from a checkpoint file, or a network of the package by its name, such as "cifar10".

    Raises:
        CheckpointError: there is none, or it is damaged or foreign.
    """
    file = existing_checkpoint(path)
    return Run(file.parent, Checkpoint(file))


def load(path: str | os.PathLike[str]) -> nn.Module:
    """The trained network of a run or a checkpoint, on the CPU: images in [0, 1] to logits.

    It is in eval mode, without gradients in its weights. To train on: ``load(run).requires_grad_(True).train()``, or
    ``skewconv train --init RUN``.

    Args:
        path: as in :func:`open_run`.
    """
    return open_run(path).model


@dataclass(frozen=True)
class EvalData:
    """Images of a split to evaluate a network on; `of` is the size of the split, `data` its dataset."""

    examples: Split
    name: str
    of: int
    data: str

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def title(self) -> str:
        kinds = {"test": "test images", "validation": "validation: held-out training images"}
        kind = kinds.get(self.name, f"images of {self.data}")
        return kind if len(self) == self.of else f"{kind}, of {self.of:,}"

    def facts(self) -> dict[str, str]:
        if self.name in ("test", "validation"):
            return {"split": self.name}
        # Records are published: the folder's own name says enough.
        return {"split": self.name, "data": f"{FOLDER}{Path(self.data.removeprefix(FOLDER)).name}"}

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """(n, C, H, W) float32 in [0, 1] as in training, labels (n,), and their indices in the split (n,)."""
        images, labels = self.examples.take(np.arange(len(self.examples)))
        return to_input(images), torch.from_numpy(labels), torch.tensor(self.examples.index)


def eval_data(
    run: Run,
    *,
    split: SplitName | None = None,
    images: int | None = None,
    data: str | None = None,
    skip_bad: bool = False,
    progress: Tick | None = None,
) -> EvalData:
    """The images to evaluate a run on: the same ones for every command with the same arguments.

    `data` is folder:PATH with other pictures of the same classes, or with the run's own images in another place.
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
        resize = run.config.loading.size is not None
        options: dict[str, Any] = {"resize": resize, "skip_bad": skip_bad, "progress": progress}
        pictures = labelled_pictures(data, run.data.classes, (channels, height, width), **options)
        return EvalData(spread(pictures, images), "pictures", len(pictures), data)
    chosen = make_splits(run.config, own)
    name, examples = ("test", own.test) if split == "test" else (chosen.name, chosen.eval)
    if split not in (None, name):
        raise ArgumentError(f"--split is {split!r}, but {run.name} held no images out: train with --holdout")
    return EvalData(spread(examples, images), name, len(examples), own.name)


def _moved(run: Run, data: str) -> Dataset | None:
    """The run's own dataset in the folder it was moved to; None if the folder holds other pictures."""
    if not run.config.data.startswith(FOLDER) or not data.startswith(FOLDER):
        return None
    try:
        found = load_data(replace(run.config, data=data))
    except SkewconvError:
        return None
    return found if run.data.agrees(DataFacts.of(found)) else None
