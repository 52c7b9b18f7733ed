"""What goes wrong on the way stops a run with a reason, and the last good checkpoint stays."""

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from skewconv import records
from skewconv.config import RegimeConfig
from skewconv.records import WriteError
from skewconv.train import step
from skewconv.train.checkpoint import Checkpoint
from skewconv.train.data import Dataset
from skewconv.train.loop import DivergedError, LostProcessError
from skewconv.train.paths import FILE
from skewconv.train.run import open_run
from tests.train.runs import TINY, assert_identical, resume, train, weights


def poison(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    original, calls = step.loss_of, []

    def poisoned(logits: Tensor, labels: Tensor, config: RegimeConfig, lipschitz: float) -> Tensor:
        calls.append(1)
        loss = original(logits, labels, config, lipschitz)
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


def test_a_loss_that_is_no_number_stops_with_the_step_and_the_last_good_checkpoint(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, at=5)
    with pytest.raises(DivergedError, match=r"loss is nan at step 5 .*good checkpoint, of step 4, is .*Use a lower"):
        train(TINY, tmp_path, data, checkpoint_seconds=0)
    kept = Checkpoint(tmp_path / FILE)
    assert kept.header.position.step == 4
    assert all(torch.isfinite(tensor).all() for tensor in kept._group("model").values())


@pytest.mark.parametrize(("after", "checkpoint_seconds", "kept"), [(2, 0.0, 2), (10, 60.0, 0)])
def test_weights_that_are_no_numbers_are_neither_saved_nor_evaluated(
    after: int, checkpoint_seconds: float, kept: int, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_weights(monkeypatch, after)
    with pytest.raises(DivergedError, match=f"a weight is no number after step {after + 1}"):
        train(TINY, tmp_path, data, checkpoint_seconds=checkpoint_seconds)
    assert Checkpoint(tmp_path / FILE).header.position.step == kept


def test_a_disk_that_fills_up_stops_the_run_and_keeps_the_older_checkpoint(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Path
) -> None:
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


def test_a_folder_that_cannot_be_written_is_found_out_before_any_work(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    def never(*arguments: Any, **options: Any) -> Tensor:
        raise AssertionError("a step was made")

    monkeypatch.setattr(step.Stepper, "step", never)
    monkeypatch.setattr(records.os, "open", refuse)
    with pytest.raises(WriteError, match="Read-only"):
        train(TINY, tmp_path, data)


def test_a_lost_process_is_said_with_how_to_go_on(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, *_: Any, **__: Any) -> Any:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:29351.\nmore")

    monkeypatch.setattr(step.Stepper, "step", broken)
    with pytest.raises(RuntimeError, match="Connection closed"):
        # One process has no peers: an error of that kind is not explained away.
        train(TINY, tmp_path / "alone", data)
    monkeypatch.setattr("lightning_fabric.Fabric.world_size", 2)
    with pytest.raises(LostProcessError, match=r"another of the 2 processes .*Connection closed.*of step 0.*--resume"):
        train(TINY, tmp_path / "run", data)
    assert open_run(tmp_path / "run").position.step == 0
