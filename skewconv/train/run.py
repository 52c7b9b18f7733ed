"""Finished and unfinished runs on disk: the config, the network, the dataset of a folder or a checkpoint."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from skewconv.config import TrainConfig
from skewconv.records import read_record
from skewconv.train.build import DataFacts, build_model, check_data, load_data
from skewconv.train.checkpoint import Checkpoint, Position
from skewconv.train.data import Dataset
from skewconv.train.places import FILE, RECORD, existing_checkpoint, is_shipped, record_beside


@dataclass(frozen=True)
class Run:
    """A run, opened: see :func:`open_run`."""

    path: Path
    checkpoint: Checkpoint

    @property
    def name(self) -> str:
        """What a person types for it: its folder, a file that lies elsewhere, or its name in the package."""
        file = self.checkpoint.path
        if is_shipped(file):
            return file.stem
        return str(self.path if file.name == FILE else file)

    @property
    def config(self) -> TrainConfig:
        """What it was told."""
        return self.checkpoint.header.config

    @property
    def data(self) -> DataFacts:
        """What it knows of its dataset: classes, shape of the images, moments."""
        return self.checkpoint.header.data

    @property
    def position(self) -> Position:
        """How far it is."""
        return self.checkpoint.header.position

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return self.data.image_shape

    @cached_property
    def model(self) -> nn.Module:
        """The network with its trained weights, ready for inference: in eval mode, without gradients, on the CPU."""
        # Initialising draws random numbers only to overwrite them: the caller's generator is left alone.
        with torch.random.fork_rng(devices=[]):
            model = build_model(self.config, self.data)
        self.checkpoint.restore_model(model)
        return model.eval().requires_grad_(False)

    def dataset(self) -> Dataset:
        """The dataset it was trained on, checked to be the same."""
        data = load_data(self.config)
        check_data(data, self.data)
        return data

    @property
    def record_path(self) -> Path:
        """Where its record lies; of a network of the package, beside it."""
        file = self.checkpoint.path
        return self.path / RECORD if file.name == FILE else record_beside(file)

    def record(self) -> dict[str, Any]:
        """The record of the run's results, written when it finished."""
        return read_record(self.record_path)


def open_run(path: str | os.PathLike[str]) -> Run:
    """A run from its folder, from a checkpoint file, or a network of the package by its name.

    Args:
        path: the folder given to `skewconv train --out`, a checkpoint file, or such a name.

    Raises:
        CheckpointError: there is none, or it is damaged or foreign.
    """
    file = existing_checkpoint(path)
    return Run(file.parent, Checkpoint(file))


def load(path: str | os.PathLike[str]) -> nn.Module:
    """The trained network of a run or a checkpoint, on the CPU: images in [0, 1] to logits.

    It comes ready for inference, in eval mode and without gradients in its weights, so that a gradient in the images
    costs no more than it must. To train on: ``load(run).requires_grad_(True).train()``, or
    ``skewconv train --init RUN`` with a recipe and a record.

    Args:
        path: the folder of a run, a checkpoint file, or a network of the package by its name, such as "cifar10".
    """
    return open_run(path).model
