"""A run that was stopped and goes on ends identical to one that was not: exact to the bit on one machine."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from skewconv.config import TrainConfig
from skewconv.train import loop
from skewconv.train.build import DataFacts, make_splits
from skewconv.train.checkpoint import Checkpoint
from skewconv.train.data import Dataset
from skewconv.train.data.dataset import DataError
from skewconv.train.paths import FILE
from tests.train.runs import TINY, StopAt, assert_identical, resume, rows, train, weights


@pytest.mark.parametrize(("at", "number"), [(1, signal.SIGTERM), (11, signal.SIGINT), (14, signal.SIGTERM)])
def test_a_signal_saves_and_the_resumed_run_ends_identical(
    at: int, number: signal.Signals, reference: Path, data: Dataset, tmp_path: Path
) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    outcome = train(TINY, tmp_path, data, display=StopAt(at, number))
    assert outcome.stopped_by == number
    assert outcome.metrics is None
    # A signal that arrives while a step's figures are shown is seen after the next step, or after the first batch of
    # the evaluation that follows the last step of an epoch.
    assert Checkpoint(tmp_path / FILE).header.position.step == outcome.position.step == (at if at == 11 else at + 1)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers
    torch.manual_seed(99)
    resume(tmp_path, data)
    assert_identical(weights(reference), weights(tmp_path))
    steps = [int(row["step"]) for row in rows(tmp_path)]
    assert steps == sorted(set(steps)) == [int(row["step"]) for row in rows(reference)]


def half_precision(config: TrainConfig, folder: Path, data: Dataset, **options: Any) -> torch.amp.GradScaler:
    """Train as 16-mixed does, on the CPU, where Fabric alone would take bf16: the scaler in the end."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=3)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    loop.Trainer(
        config, Fabric(accelerator="cpu", devices=1, plugins=plugin), folder, make_splits(config, data), **options
    ).fit()
    return scaler


def test_in_half_precision_too_the_resumed_run_ends_identical(data: Dataset, tmp_path: Path) -> None:
    config = replace(TINY, precision="16-mixed")
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for folder in (whole, halves):
        folder.mkdir()
    expected = half_precision(config, whole, data).state_dict()
    half_precision(config, halves, data, display=StopAt(7))
    found = half_precision(config, halves, data, checkpoint=Checkpoint(halves / FILE)).state_dict()
    assert found == expected
    assert found["scale"] == 2.0**11
    assert_identical(weights(whole), weights(halves))


def test_logs_after_the_last_checkpoint_are_not_doubled(reference: Path, data: Dataset, tmp_path: Path) -> None:
    train(TINY, tmp_path, data, display=StopAt(5))
    with open(tmp_path / "log.csv", "a") as file:
        file.write("7,0,1,1,1,1,1,,\n8,0,1,")
    resume(tmp_path, data)
    assert [row["step"] for row in rows(tmp_path)] == [row["step"] for row in rows(reference)]
    assert any((tmp_path / "tensorboard").iterdir())


def test_a_finished_run_resumed_gives_its_record_again(reference: Path, data: Dataset) -> None:
    before = weights(reference)
    outcome = resume(reference, data)
    assert outcome.record["results"]["status"] == "finished"
    assert outcome.record["results"]["clean"] > 0
    assert outcome.position.step == 22
    assert_identical(before, weights(reference))


def test_other_images_than_the_runs_own_are_refused(reference: Path, data: Dataset) -> None:
    # One pixel of one image moves the mean by 4e-8; another processor rounds it otherwise, in the last digits.
    facts, (mean,) = DataFacts.of(data), data.mean
    assert facts.agrees(replace(facts, mean=(mean * (1 + 1e-15),)))
    other = replace(data, mean=(mean + 1 / 255 / 1438 / 64,))
    with pytest.raises(DataError, match=r"other contents than the 1438 \+ 359 this run was trained on"):
        resume(reference, other)
