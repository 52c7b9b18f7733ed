"""The loop: it learns, repeats itself bit for bit, stops in good order, and its figures can be had again.

A run that is resumed or made again on one machine, with the same threads, is a repeated computation: exact to the bit.
"""

import csv
import errno
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from torch import Tensor

from skewconv import records
from skewconv.config import ModelConfig, OptimConfig, RegimeConfig, TrainConfig
from skewconv.nn import lipschitz_upper_bound
from skewconv.records import WriteError, read_record
from skewconv.train import judging, loop, step
from skewconv.train.build import parts
from skewconv.train.checkpoint import Checkpoint
from skewconv.train.data import Dataset
from skewconv.train.data.errors import DataError
from skewconv.train.evaluate import evaluate
from skewconv.train.outcome import DivergedError, LostProcessError
from skewconv.train.places import FILE, RECORD
from skewconv.train.progress import Lines, Silent, Status
from skewconv.train.run import load, open_run
from tests.train.runs import TINY, assert_identical, digits, resume, train, weights


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return digits(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def reference(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("reference")
    train(TINY, folder, data)
    return folder


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "log.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_it_learns(data: Dataset, tmp_path: Path) -> None:
    config = replace(TINY, epochs=6, model=ModelConfig(width=8))
    outcome = train(config, tmp_path, data)
    losses = [float(row["loss"]) for row in rows(tmp_path)]
    assert losses[-1] < 0.7 * losses[0]
    assert outcome.figures is not None
    assert outcome.figures.clean > 0.6
    assert outcome.position.finished
    assert outcome.position.step == 6 * 11


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(
    reference: Path, data: Dataset, tmp_path: Path
) -> None:
    torch.manual_seed(123)
    train(TINY, tmp_path / "same", data)
    assert_identical(weights(reference), weights(tmp_path / "same"))
    train(replace(TINY, seed=1), tmp_path / "other", data)
    assert not torch.equal(weights(reference)["model/head.bias"], weights(tmp_path / "other")["model/head.bias"])


def test_the_figures_are_repeated_exactly_from_the_checkpoint(reference: Path, data: Dataset) -> None:
    run = open_run(reference)
    stored = read_record(reference / RECORD)["results"]
    again = evaluate(load(reference), data.test, run.config).plain()
    assert {name: stored[name] for name in again} == again
    assert set(again["certified"]) == {"36/255", "72/255", "108/255", "1"}
    assert again["certified"]["36/255"] <= again["clean"]
    assert again["lipschitz_upper_bound"] == pytest.approx(lipschitz_upper_bound(run.model, (1, 8, 8)), rel=1e-6)
    assert read_record(reference / RECORD)["config"]["model"]["width"] == 2


def test_certified_accuracy_is_the_share_of_margins_above_root_two_times_the_bound(
    reference: Path, data: Dataset
) -> None:
    model = load(reference).double()
    images = torch.from_numpy(data.test.images.copy()).double() / 255
    labels = torch.from_numpy(data.test.labels.copy())
    with torch.no_grad():
        logits = model(images)
    right = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -math.inf).amax(1)
    radii = (right - others) / (math.sqrt(2) * lipschitz_upper_bound(model, (1, 8, 8)))
    figures = evaluate(load(reference), data.test, TINY)
    assert figures.certified is not None
    for name, radius in zip(figures.certified, TINY.radii, strict=True):
        # Pairs of logits may have a better constant than root two times the bound, but hardly.
        expected = float((radii >= radius).double().mean())
        assert expected <= figures.certified[name] <= expected + 0.01
    quick = evaluate(load(reference), data.test, TINY, quick=True)
    assert quick.certified is not None
    assert quick.certified["36/255"] == pytest.approx(figures.certified["36/255"], abs=0.01)


class StopAt(Silent):
    """Sends this process a signal after a step: what Ctrl-C and a batch system do, at a moment of our choice."""

    def __init__(self, step: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.step, self.number = step, number

    def show(self, status: Status) -> None:
        if status.step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("at", [1, 11, 14])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_resumed_run_ends_identical(
    at: int, number: signal.Signals, reference: Path, data: Dataset, tmp_path: Path
) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    outcome = train(TINY, tmp_path, data, display=StopAt(at, number))
    assert outcome.stopped_by == number
    assert outcome.figures is None
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
        config, Fabric(accelerator="cpu", devices=1, plugins=plugin), folder, parts(config, data), **options
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


def poison(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    original, calls = step.loss_of, []

    def poisoned(logits: Tensor, labels: Tensor, config: RegimeConfig) -> Tensor:
        calls.append(1)
        loss = original(logits, labels, config)
        return loss * math.nan if len(calls) == at else loss

    monkeypatch.setattr(step, "loss_of", poisoned)


def test_a_loss_that_is_no_number_stops_with_the_step_and_the_last_good_checkpoint(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, at=5)
    with pytest.raises(DivergedError, match=r"loss is nan at step 5 .*good checkpoint, of step 4, is .*Use a lower"):
        train(TINY, tmp_path, data, checkpoint_seconds=0)
    kept = Checkpoint(tmp_path / FILE)
    assert kept.header.position.step == 4
    assert all(torch.isfinite(tensor).all() for tensor in kept._group("model").values())


def test_weights_that_are_no_numbers_are_never_saved(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = step.Stepper.step

    def poisoned(self: step.Stepper, *arguments: Any, **options: Any) -> Tensor:
        figures = original(self, *arguments, **options)
        if options["step"] == 2:
            with torch.no_grad():
                next(self.model.parameters()).fill_(math.nan)
        return figures

    monkeypatch.setattr(step.Stepper, "step", poisoned)
    with pytest.raises(DivergedError, match="a weight is no number after step 3"):
        train(TINY, tmp_path, data, checkpoint_seconds=0)
    assert Checkpoint(tmp_path / FILE).header.position.step == 2


def test_a_disk_that_fills_up_stops_the_run_and_keeps_the_older_checkpoint(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Path
) -> None:
    original, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(1)
        if len(calls) > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(records.os, "fsync", full)
        with pytest.raises(WriteError, match="the disk is full"):
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
    with pytest.raises(WriteError, match="read-only"):
        train(TINY, tmp_path, data)


def test_a_batch_in_parts_gives_the_gradient_of_the_whole(data: Dataset, tmp_path: Path) -> None:
    # Not with SOC, whose power iteration goes a step further with every forward pass, and so with every part.
    whole = replace(TINY, model=ModelConfig(width=2, conv="cayley"))
    train(whole, tmp_path / "whole", data)
    train(replace(whole, optim=replace(whole.optim, accumulate=4)), tmp_path / "parts", data)
    expected, found = load(tmp_path / "whole").state_dict(), load(tmp_path / "parts").state_dict()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=1e-4)


def test_other_images_than_the_runs_own_are_refused(reference: Path, data: Dataset) -> None:
    other = replace(data, mean=(0.5,))
    with pytest.raises(DataError, match=r"other contents than the 1438 \+ 359 this run was trained on"):
        resume(reference, other)


@pytest.mark.parametrize(
    "config",
    [
        replace(TINY, regime=RegimeConfig(gamma=0.5), model=ModelConfig(width=2, head="normalized")),
        replace(TINY, regime=RegimeConfig(loss="margin", logit_scale=4.0)),
        replace(TINY, optim=OptimConfig(optimizer="sgd", lr=0.05, nesterov=True, schedule="cosine", clip=1.0)),
        replace(TINY, model=ModelConfig(width=2, conv="bcop")),
        replace(TINY, model=ModelConfig(width=2, conv="cayley", activation="householder")),
        replace(TINY, regime=RegimeConfig(regime="standard"), model=ModelConfig(arch="resnet-18", width=2)),
    ],
    ids=["certificate", "margin", "sgd", "bcop", "cayley", "resnet"],
)
def test_every_option_trains_and_is_judged(config: Any, data: Dataset, tmp_path: Path) -> None:
    outcome = train(replace(config, epochs=1), tmp_path, data)
    assert outcome.figures is not None
    assert (outcome.figures.certified is None) == (config.regime.regime != "provable")
    losses = [float(row["loss"]) for row in rows(tmp_path)]
    assert losses[-1] < losses[0]


def test_adversarial_training_attacks_in_training_and_in_the_end(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regime = RegimeConfig(regime="adversarial", pgd_steps=2, pgd_restarts=2, attack_images=60, epsilon=0.1)
    config = replace(TINY, epochs=1, regime=regime, model=ModelConfig(arch="resnet-18", conv="soc", width=2))
    moved: list[float] = []
    original = step.fgsm_from_start

    def watched(model: Any, images: Tensor, *rest: Any) -> Tensor:
        attacked = original(model, images, *rest)
        moved.append(float((attacked - images).abs().max()))
        return attacked

    monkeypatch.setattr(step, "fgsm_from_start", watched)
    outcome = train(config, tmp_path, data)
    assert len(moved) == 11
    assert all(0.05 < most <= 0.1 + 1e-6 for most in moved)
    assert outcome.figures is not None
    assert outcome.figures.attacked_images == 60
    assert outcome.figures.attacked is not None
    assert outcome.figures.attacked <= outcome.figures.clean + 0.1
    interrupted = tmp_path / "interrupted"
    train(config, interrupted, data, display=StopAt(4))
    resume(interrupted, data)
    assert_identical(weights(tmp_path), weights(interrupted))


class Ticking:
    """A clock that moves with every look at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.05
        return self.now


def test_a_budget_ends_on_time_by_its_clock_and_with_a_small_rate(data: Dataset, tmp_path: Path) -> None:
    clock = Ticking()
    config = replace(TINY, epochs=None, minutes=0.5)
    outcome = train(config, tmp_path, data, clock=clock, started=0.0)
    assert clock.now == pytest.approx(30, rel=0.05)
    assert outcome.position.finished
    assert outcome.position.done == 1.0
    rates = [float(row["lr"]) for row in rows(tmp_path)]
    assert rates[-1] < 0.2 * max(rates)


def test_a_budget_leaves_room_for_slow_checkpoints_and_the_end_of_the_process(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Ticking()
    original = loop.save

    def slow(*arguments: Any) -> None:
        clock.now += 2
        original(*arguments)

    monkeypatch.setattr(loop, "save", slow)
    train(replace(TINY, epochs=None, minutes=0.5), tmp_path, data, clock=clock, started=0.0, closing=3.0)
    assert clock.now + 3 == pytest.approx(30, rel=0.05)


class SlowJudging(Ticking):
    """Every image that is judged takes a tenth of a second."""

    def judge(self, evaluate: Any) -> Any:
        def judged(model: Any, split: Any, config: Any, *, images: int | None = None, **options: Any) -> Any:
            self.now += 0.1 * (len(split) if images is None else images)
            return evaluate(model, split, config, images=images, **options)

        return judged


def test_the_last_evaluation_takes_a_small_share_of_a_budget(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    clock = SlowJudging()
    monkeypatch.setattr(judging, "evaluate", clock.judge(judging.evaluate))
    config = replace(TINY, epochs=None, minutes=2.0, eval_every=1000)
    config = replace(config, loading=replace(config.loading, eval_batch_size=20))
    outcome = train(config, tmp_path, data, clock=clock, started=0.0, display=Lines())
    assert clock.now == pytest.approx(120, rel=0.05)
    # All of them would take 30% of the budget.
    assert outcome.figures is not None
    assert 60 <= outcome.figures.images <= 0.08 * 120 / 0.1 < 0.5 * len(data.test)
    assert f"takes {outcome.figures.images:,} of {len(data.test)} images" in capsys.readouterr().err


def test_plain_lines_tell_what_a_person_wants_to_know(data: Dataset, tmp_path: Path, capsys: Any) -> None:
    train(TINY, tmp_path, data, display=Lines())
    said = capsys.readouterr().err
    for word in ("epoch", "loss", "train", "test", "certified", "images/s", "left", "100%"):
        assert word in said


def test_the_first_process_alone_writes(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(loop, "save", lambda path, *rest: written.append(str(path)))
    monkeypatch.setattr(loop, "write_record", lambda path, record: written.append(str(path)))
    trainer = loop.Trainer(TINY, _second_process(), tmp_path, parts(TINY, data))
    trainer._save()
    assert written == []


def _second_process() -> Any:
    import lightning_fabric

    fabric = lightning_fabric.Fabric(accelerator="cpu", devices=1)

    class Second:
        is_global_zero = False
        world_size = 1
        global_rank = 0
        device = torch.device("cpu")
        setup = fabric.setup

    return Second()


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
