"""Small trainings for the tests: a tiny LipConvnet on the digits, in this process or as a command."""

import csv
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning_fabric
import torch
from torch import Tensor

from skewconv.config import LoadingConfig, ModelConfig, TrainConfig
from skewconv.progress import Display
from skewconv.train.checkpoint import Checkpoint
from skewconv.train.data import Dataset, load_dataset
from skewconv.train.data.dataset import make_splits
from skewconv.train.environment import FILE
from skewconv.train.loop import Outcome, Trainer
from skewconv.train.presets import recipe
from tests.waiting import output

# 11 steps an epoch.
TINY = replace(recipe("digits"), epochs=2, model=ModelConfig(depth=5, width=2), loading=LoadingConfig(batch_size=128))
TINY_FLAGS = ("--width", "2", "--batch-size", "128", "--epochs", "2")


def digits(root: Path) -> Dataset:
    return load_dataset("digits", root=root)


def train(config: TrainConfig, folder: Path, data: Dataset, **options: Any) -> Outcome:
    """Train in this process."""
    folder.mkdir(exist_ok=True)
    fabric = lightning_fabric.Fabric(accelerator="cpu", devices=1, precision=config.precision)
    return Trainer(config, fabric, folder, make_splits(config, data), **options).fit()


def resume(folder: Path, data: Dataset, **options: Any) -> Outcome:
    """Go on in this process."""
    checkpoint = Checkpoint(folder / FILE)
    return train(checkpoint.header.config, folder, data, checkpoint=checkpoint, **options)


def weights(folder: Path) -> dict[str, Tensor]:
    """Everything a checkpoint holds: weights, optimiser, random states."""
    return Checkpoint(folder / FILE)._tensors


def rows(folder: Path) -> list[dict[str, str]]:
    """What a run logged."""
    with open(folder / "log.csv", newline="") as file:
        return list(csv.DictReader(file))


def assert_identical(some: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    """To the bit: a run that is made again, or resumed, on one machine with the same threads repeats itself."""
    assert some.keys() == others.keys()
    for name, tensor in some.items():
        assert torch.equal(tensor, others[name]), name


class StopAt(Display):
    """Sends this process a signal after a step: what Ctrl-C and a batch system do, at a moment of our choice."""

    def __init__(self, step: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.step, self.number = step, number

    def show(self, step: int, done: float, text: str) -> None:
        if step == self.step:
            os.kill(os.getpid(), self.number)


def environment(root: Path) -> dict[str, str]:
    """One thread, the given cache, and no trace of the tests' own launcher."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TORCHELASTIC"))}
    return {**kept, "OMP_NUM_THREADS": "1", "SKEWCONV_CACHE": str(root), "PYTHONWARNINGS": "ignore"}


def start(root: Path, *words: str, launcher: tuple[str, ...] = (), fault: str = "") -> "subprocess.Popen[str]":
    """`skewconv train WORDS` as a process of its own, with a fault of tests/train/faulty.py."""
    command = [sys.executable, *launcher, "-m", "tests.train.faulty" if fault else "skewconv", "train", *words]
    env, pipe = {**environment(root), "FAULT": fault}, subprocess.PIPE
    # A session of its own, so that a failed test can end its workers with it.
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def finish(process: "subprocess.Popen[str]", status: int = 0) -> tuple[str, str]:
    """Wait for its end: what it printed, and wrote to stderr."""
    out, err = output(process)
    assert process.returncode == status, f"status {process.returncode}\n{out}\n{err}"
    return out, err
