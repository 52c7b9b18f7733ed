"""Runs end in order and go on exactly: signals, budgets, faults with a reason.

Whatever happens, the last good checkpoint stays.
"""

import errno
import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from torch import Tensor

from skewconv import records
from skewconv.config import ModelConfig, TrainConfig, flag
from skewconv.errors import ArgumentError
from skewconv.progress import Display
from skewconv.records import WriteError, read_record
from skewconv.train import loop, step
from skewconv.train.checkpoint import Checkpoint, DataFacts, check_norm_bound
from skewconv.train.data import Dataset
from skewconv.train.data.dataset import DataError, make_splits
from skewconv.train.environment import FILE, RECORD, CheckpointError
from skewconv.train.loop import DivergedError
from skewconv.train.run import open_run
from tests.train.runs import TINY, StopAt, assert_identical, resume, rows, train, weights

ONE_EPOCH = replace(TINY, epochs=1)


class StopAtWork(Display):
    """Sends this process a signal while the network is judged."""

    def __init__(self, what: str) -> None:
        self.what = what

    def work(self, what: str, done: int = 0, total: int = 0) -> None:
        if what == self.what and done and self.what:
            self.what = ""
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_in_the_last_evaluation_ends_it_and_nothing_is_lost(reference, data, tmp_path):
    outcome = train(TINY, tmp_path, data, display=StopAtWork("evaluating on all test images"))
    assert outcome.stopped_by == signal.SIGTERM
    assert outcome.record is None
    position = Checkpoint(tmp_path / FILE).header.position
    assert (position.step, position.done, position.finished) == (22, 1.0, False)
    assert resume(tmp_path, data).metrics is not None
    assert_identical(weights(reference), weights(tmp_path))
    found, expected = (read_record(folder / RECORD)["results"] for folder in (tmp_path, reference))
    assert found["certified"] == expected["certified"]
    assert [row["step"] for row in rows(tmp_path)] == [row["step"] for row in rows(reference)]


def test_commands_on_a_run_that_has_not_ended_say_so(data, cache, tmp_path, monkeypatch, call):
    monkeypatch.setenv("SKEWCONV_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    train(TINY, tmp_path / "run", data, display=StopAt(3))
    said = "run has not ended: these are the weights of step 4; continue with skewconv train --resume --out run"
    for words in (
        "certify run --images 2",
        "export run --to torch-export --images 2 --out x.pt2",
        "report run --out x",
    ):
        status, _, err = call(*words.split())
        assert (status, said in err) == (0, True), err


def test_the_log_has_the_last_evaluation_and_every_radius(reference):
    last, results = rows(reference)[-1], read_record(reference / RECORD)["results"]
    assert int(last["step"]) == 22
    assert float(last["test_clean"]) == pytest.approx(results["clean"], rel=1e-5)
    names = ["test_certified", "test_certified_72/255", "test_certified_108/255", "test_certified_1"]
    assert [float(last[name]) for name in names] == pytest.approx(list(results["certified"].values()), rel=1e-5)


def test_a_budget_shorter_than_its_own_evaluation_is_refused_with_one_that_does(data, tmp_path):
    config = replace(TINY, epochs=None, minutes=0.5)
    with pytest.raises(
        ArgumentError, match=r"^--minutes is 0.5, which leaves no time to train: .* give --minutes 1\d\d"
    ):
        train(config, tmp_path, data, started=time.monotonic() - 6000)
    assert Checkpoint(tmp_path / FILE).header.position.step == 0


def test_a_finished_run_is_not_judged_again(reference, data):
    again = resume(reference, data, display=StopAtWork("evaluating on all test images"))
    assert again.record == read_record(reference / RECORD)


def test_a_run_starts_from_the_weights_of_another(reference, data, tmp_path):
    config: TrainConfig = replace(ONE_EPOCH, init=str(reference), seed=5)
    train(config, tmp_path, data, checkpoint_seconds=1e9, display=StopAtWork("evaluating on all test images"))
    assert open_run(tmp_path).config.init == str(reference)
    losses = [float(rows(folder)[0]["loss"]) for folder in (tmp_path, reference)]
    assert losses[0] < losses[1]
    other = replace(config, model=ModelConfig(width=4))
    with pytest.raises(CheckpointError, match="a network of another build"):
        train(other, tmp_path / "other", data)


@pytest.mark.parametrize(("series", "good", "bad"), [("chebyshev", 15.0, 100.0), ("taylor", 9.0, 15.0)])
def test_a_norm_bound_that_float32_cannot_carry_is_refused(series, good, bad):
    check_norm_bound(ModelConfig(norm_bound=good, series=series))
    for far in (bad, 1e9):
        for name in ("norm_bound", "norm_bound_1x1"):
            with pytest.raises(ArgumentError, match=rf"^{flag(name)} is .*float32.*give a smaller one"):
                check_norm_bound(ModelConfig(**{name: far}, series=series))


@pytest.mark.parametrize(("at", "number"), [(1, signal.SIGTERM), (11, signal.SIGINT), (14, signal.SIGTERM)])
def test_a_signal_saves_and_the_resumed_run_ends_identical(at, number, reference, data, tmp_path):
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


def test_in_half_precision_too_the_resumed_run_ends_identical(data, tmp_path):
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


def test_logs_after_the_last_checkpoint_are_not_doubled(reference, data, tmp_path):
    train(TINY, tmp_path, data, display=StopAt(5))
    with open(tmp_path / "log.csv", "a") as file:
        file.write("7,0,1,1,1,1,1,,\n8,0,1,")
    resume(tmp_path, data)
    assert [row["step"] for row in rows(tmp_path)] == [row["step"] for row in rows(reference)]


def test_other_images_than_the_runs_own_are_refused(reference, data):
    # One pixel of one image moves the mean by 4e-8; another processor rounds it otherwise, in the last digits.
    facts, (mean,) = DataFacts.of(data), data.mean
    assert facts.agrees(replace(facts, mean=(mean * (1 + 1e-15),)))
    other = replace(data, mean=(mean + 1 / 255 / 1438 / 64,))
    with pytest.raises(DataError, match=r"other contents than the 1438 \+ 359 this run was trained on"):
        resume(reference, other)


def poison(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    original, calls = step.loss_of, []

    def poisoned(*arguments: Any) -> Tensor:
        calls.append(1)
        loss = original(*arguments)
        return loss * math.nan if len(calls) == at else loss

    monkeypatch.setattr(step, "loss_of", poisoned)


def spoil_weights(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    original = step.Stepper.step

    def spoiling(self: step.Stepper, *arguments: Any, **options: Any) -> Tensor:
        figures = original(self, *arguments, **options)
        if options["step"] == after:
            with torch.no_grad():
                next(self.model.parameters()).fill_(math.nan)
        return figures

    monkeypatch.setattr(step.Stepper, "step", spoiling)


def test_a_loss_that_is_no_number_stops_with_the_step_and_the_last_good_checkpoint(data, tmp_path, monkeypatch):
    poison(monkeypatch, at=5)
    with pytest.raises(DivergedError, match=r"loss is nan at step 5 .*good checkpoint, of step 4, is .*Use a lower"):
        train(TINY, tmp_path, data, checkpoint_seconds=0)
    kept = Checkpoint(tmp_path / FILE)
    assert kept.header.position.step == 4
    assert all(torch.isfinite(tensor).all() for tensor in kept._group("model").values())


@pytest.mark.parametrize(("after", "checkpoint_seconds", "kept"), [(2, 0.0, 2), (10, 60.0, 0)])
def test_weights_that_are_no_numbers_are_neither_saved_nor_evaluated(
    after, checkpoint_seconds, kept, data, tmp_path, monkeypatch
):
    spoil_weights(monkeypatch, after)
    with pytest.raises(DivergedError, match=f"a weight is no number after step {after + 1}"):
        train(TINY, tmp_path, data, checkpoint_seconds=checkpoint_seconds)
    assert Checkpoint(tmp_path / FILE).header.position.step == kept


def test_a_disk_that_fills_up_stops_the_run_and_keeps_the_older_checkpoint(data, tmp_path, monkeypatch, reference):
    original, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(1)
        # Those of folders are passed over: a file is in its place without them.
        if len(calls) > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(records.os, "fsync", full)
        with pytest.raises(WriteError, match="No space left"):
            train(TINY, tmp_path, data, checkpoint_seconds=0)
    assert Checkpoint(tmp_path / FILE).header.position.step >= 1
    resume(tmp_path, data)
    assert_identical(weights(reference), weights(tmp_path))


def test_a_folder_that_cannot_be_written_is_found_out_before_any_work(data, tmp_path, monkeypatch):
    def refuse(*arguments: Any, **options: Any) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    def never(*arguments: Any, **options: Any) -> Tensor:
        raise AssertionError("a step was made")

    monkeypatch.setattr(step.Stepper, "step", never)
    monkeypatch.setattr(records.os, "open", refuse)
    with pytest.raises(WriteError, match="Read-only"):
        train(TINY, tmp_path, data)
