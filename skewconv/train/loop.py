"""The training loop: steps, evaluations between epochs, checkpoints, and an orderly end whatever happens."""

import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from skewconv.config import TrainConfig, to_dict
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.progress import Display, clock_time
from skewconv.records import make_record, radius_name, remove_leftovers, write_record
from skewconv.train.checkpoint import Checkpoint, DataFacts, Header, Position, build_model, check_data, save
from skewconv.train.data import Batches
from skewconv.train.data.dataset import Splits, epoch_batches
from skewconv.train.environment import FILE, RECORD, Logs, existing_checkpoint
from skewconv.train.step import Metrics, Plan, Stepper, evaluate

# Waiting for an accelerator after every step would idle it.
_FLUSH_STEPS = 20
_ROWS_AN_EPOCH = 10
# The last evaluation takes no more than this share of a budget of minutes.
_LARGEST_SHARE = 0.08
# The time of an image in the last evaluation, whose float64 proofs cover rounding, relative to one on the way.
_PROOF = 2.0

T = TypeVar("T")


class DivergedError(SkewconvError):
    """The loss or the weights are no longer finite."""


class StopRequestedError(Exception):
    """A signal came during an evaluation. Internal: the run is saved and ends."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.signal = number


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its metrics and record, or the signal that stopped it."""

    position: Position
    model: nn.Module
    metrics: Metrics | None = None
    stopped_by: signal.Signals | None = None
    record: dict[str, Any] | None = None


class StopSignals:
    """Ctrl-C and SIGTERM, noted in `received` while entered; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        # Python allows handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        if self.received is not None:
            raise StopRequestedError(self.received)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        outer = getattr(self._before.get(number), "__self__", None)
        if isinstance(outer, StopSignals):
            # A loop over several runs has to know of it even if this run was at its end already.
            outer.received = self.received


class Trainer:
    """A run in a folder that exists, to its end; a budget of minutes began at `started` by `clock`."""

    def __init__(
        self,
        config: TrainConfig,
        fabric: Any,
        folder: Path,
        splits: Splits,
        *,
        checkpoint: Checkpoint | None = None,
        display: Display | None = None,
        checkpoint_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        started: float | None = None,
    ) -> None:
        self.config, self.fabric, self.folder, self.splits = config, fabric, folder, splits
        self.facts = DataFacts.of(splits.data)
        self.display = display or Display()
        self.checkpoint_seconds, self.clock = checkpoint_seconds, clock
        self.is_first = bool(fabric.is_global_zero)
        self.display.work("building the network")
        torch.manual_seed(config.seed)
        model = build_model(config, self.facts)
        self.position = Position()
        self.record = make_record("train", config=to_dict(config), seed=config.seed, results={"status": "unfinished"})
        if checkpoint is not None:
            check_data(splits.data, checkpoint.header.data)
            checkpoint.restore_model(model)
            self.position, self.record = checkpoint.header.position, checkpoint.header.record
        elif config.init is not None:
            Checkpoint(existing_checkpoint(config.init)).initialise(model)
        self.stepper = Stepper(config, fabric, model)
        if checkpoint is not None:
            checkpoint.restore_optimizer(self.stepper.optimizer)
            checkpoint.restore_scaler(self.stepper.precision)
            checkpoint.restore_random()
        self.signals = StopSignals()
        self._final_images = len(splits.eval)
        began = (clock() if started is None else started) - self.position.seconds
        steps = None if config.epochs is None else config.epochs * self._batches().steps
        at, budget = self.position, 60 * (config.minutes or 0)
        self.plan = Plan(steps, budget, step=at.step, done=at.done, began=began, clock=clock)
        self._saved_step: int | None = None if checkpoint is None else self.position.step
        self._saved_at, self._saving = clock(), 0.0
        self._recorded = False
        self._pending: list[Tensor] = []
        self._loss = self._accuracy = self._speed = 0.0
        self._shown = False
        self._latest: Metrics | None = None

    def fit(self) -> Outcome:
        if self.position.finished:
            return self._outcome(record=self.record)
        names = tuple(map(radius_name, self.config.radii)) if self.config.regime.regime == "provable" else ()
        logs = Logs(self.folder, self.position.step, self.splits.name, names) if self.is_first else None
        try:
            with self.signals as signals:
                if self._saved_step is not None:
                    self.display.note(f"going on from the checkpoint of step {self._saved_step}")
                else:
                    # Before any work: a folder that cannot be written to is found out now.
                    self._save()
                self._measure_ending()
                self.display.work("the first step")
                stopped = self._train(signals, logs)
                self._save()
                return self._finish(logs) if stopped is None else self._outcome(stopped_by=stopped)
        except StopRequestedError as request:
            # The weights were saved before the evaluation, and are the same.
            return self._outcome(stopped_by=request.signal)
        finally:
            if logs is not None:
                logs.close()
            self.display.close()

    def _outcome(self, **results: Any) -> Outcome:
        return Outcome(self.position, self.stepper.model, **results)

    # The loop

    def _train(self, signals: StopSignals, logs: Logs | None) -> signal.Signals | None:
        while self.plan.done < 1:
            batches = self._batches()
            rows = max(1, batches.steps // _ROWS_AN_EPOCH)
            for images, labels in batches:
                at = self.position
                found = self.stepper.step(images, labels, done=self.plan.done, epoch=at.epoch, step=at.step_in_epoch)
                self._pending.append(found)
                self.plan.advance()
                stop = self._agree(signals.received)
                self._move(at.epoch, at.step_in_epoch + 1)
                if self.fabric.device.type == "cpu" or self.position.step % _FLUSH_STEPS == 0:
                    self._flush()
                    self._show(len(labels) * self.fabric.world_size)
                last, metrics = at.step_in_epoch + 1 == batches.steps, None
                if last:
                    self._move(at.epoch + 1, 0, steps=0)
                    try:
                        metrics = self._evaluate_if_due(at.epoch + 1)
                    except StopRequestedError as request:
                        stop = request.signal
                # The row of the last step waits for the last evaluation.
                if logs is not None and self.plan.done < 1 and (last or self.position.step % rows == 0):
                    self._log(logs, metrics)
                self._save_if_due()
                if stop is not None or self.plan.done >= 1:
                    self._flush()
                    return stop
        return None

    def _batches(self) -> Batches:
        at = self.position
        return epoch_batches(self.config, self.splits, self.fabric, epoch=at.epoch, start_step=at.step_in_epoch)

    def _epochs(self) -> float:
        return self.position.epoch + self.position.step_in_epoch / self._batches().steps

    def _move(self, epoch: int, step_in_epoch: int, steps: int = 1) -> None:
        step, seconds = self.position.step + steps, self.plan.spent
        self.position = Position(step, epoch, step_in_epoch, self.plan.done, seconds)

    def _agree(self, received: signal.Signals | None) -> signal.Signals | None:
        """All processes follow the clock of the first, and stop together if any of them was asked to."""
        if self.fabric.world_size == 1:
            return received
        mine = torch.tensor([float(received or 0), self.plan.done if self.is_first else 0.0], dtype=torch.float64)
        number, done = self.fabric.all_reduce(mine.to(self.fabric.device), reduce_op="max").tolist()
        if self.plan.steps is None:
            self.plan.done = done
        return signal.Signals(int(number)) if number else None

    # Metrics

    def _flush(self) -> None:
        """Look at the losses since the last time; the first that is no number ends the run."""
        if not self._pending:
            return
        rows = torch.stack(self._pending)
        if self.fabric.world_size > 1:
            rows = self.fabric.all_reduce(rows, reduce_op="mean")
        first = self.position.step - len(self._pending) + 1
        self._pending = []
        for step, (loss, accuracy) in enumerate(rows.tolist(), first):
            if not abs(loss) < float("inf"):
                raise self._diverged(f"the loss is {loss} at step {step}")
            weight = 0.05 if self._shown else 1.0
            self._shown = True
            self._loss += weight * (loss - self._loss)
            self._accuracy += weight * (accuracy - self._accuracy)

    def _diverged(self, what: str) -> DivergedError:
        kept = f"the last good checkpoint, of step {self._saved_step}, is {self.folder / FILE}"
        return DivergedError(
            f"{what} (learning rate {self.stepper.lr:.3g}): training stopped; {kept}. Use a lower --lr, or --clip 1"
        )

    def _show(self, images: int) -> None:
        self._speed = images / self.plan.pace if self.plan.pace else 0.0
        epoch, done = self._epochs(), self.plan.done
        if self.plan.steps is not None and not self.plan.reserve:
            self.plan.reserve = _PROOF * self._final_images * self.plan.pace / self.config.loading.batch_size
        epochs = self.config.epochs or (epoch / done if done > 0.01 else None)
        text = [
            f"epoch {epoch:.1f}" + (f"/{epochs:.4g}" if epochs else ""),
            f"{clock_time(self.plan.seconds_left())} left",
        ]
        if (latest := self._latest) is not None:
            if latest.certified is not None:
                # Margin over bound in the precision of training; the last evaluation proves it.
                text.append(f"certified (estimate) {next(iter(latest.certified.values())):.1%}")
            text.append(f"{self.splits.name} {latest.clean:.1%}")
        text += [f"loss {self._loss:.3f}", f"train {self._accuracy:.1%}", f"{self._speed:,.0f} images/s"]
        self.display.show(self.position.step, done, "  ".join(text))

    def _log(self, logs: Logs, metrics: Metrics | None) -> None:
        at = self.position
        row: dict[str, float] = {"step": at.step, "epoch": at.epoch, "seconds": at.seconds, "lr": self.stepper.lr}
        # A run that was stopped in its last evaluation has made no step since.
        if self._shown:
            row |= {"loss": self._loss, "accuracy": self._accuracy, "images_per_second": self._speed}
        logs.write(row, *((metrics.clean, metrics.certified) if metrics else ()))

    # Evaluation

    def _evaluate_if_due(self, epoch: int) -> Metrics | None:
        if epoch % self.config.eval_every or self.plan.done >= 1:
            return None
        # A network that has diverged is not evaluated: that would be refused for other reasons.
        self._flush()
        self._refuse_divergence()
        began = self.clock()
        self._latest = self._first_alone(lambda: self._evaluate("evaluating", self.config.monitor_images, quick=True))
        if self.plan.steps is not None:
            shown = min(self.config.monitor_images, self._final_images)
            self.plan.reserve = _PROOF * (self.clock() - began) * self._final_images / shown
        self.plan.pause_ended()
        return self._latest

    def _evaluate(self, what: str, images: int, *, quick: bool = False) -> Metrics:
        """The metrics on this number of images; a signal ends it at the next batch."""

        def tick(done: int, total: int) -> None:
            self.display.work(what, done, total)
            self.signals.check()

        self.display.work(what)
        options = {"images": images, "quick": quick, "device": self.fabric.device}
        return evaluate(self.stepper.model, self.splits.eval, self.config, **options, progress=tick)

    def _first_alone(self, work: Callable[[], T]) -> T:
        """The result of the first process, sent to all; a signal there stops all of them."""
        found, number = None, None
        if self.is_first:
            try:
                found = work()
            except StopRequestedError as request:
                number = request.signal
        found, number = self.fabric.broadcast((found, number))
        if number is not None:
            raise StopRequestedError(number)
        return cast(T, found)

    def _measure_ending(self) -> None:
        """Measure the last evaluation and the checkpoints before and after it, so that a budget has room."""
        if self.plan.steps is None and self.plan.done < 1:
            self._first_alone(self._reserve_ending)
            self.plan.pause_ended()

    def _reserve_ending(self) -> None:
        """The last evaluation takes a small share of a budget, or one batch; refuses a budget that leaves no step."""
        plan, whole, seconds = self.plan, len(self.splits.eval), []
        few, more = 1, min(self.config.loading.eval_batch_size, whole)
        for images in (few, more):
            began = self.clock()
            self._evaluate("measuring how long the last evaluation takes", images)
            seconds.append(self.clock() - began)
        # Nearly all the time of one image is preparation. Attacks, where there are some, take nearly the rest.
        each, attacked = max(0.0, seconds[1] - seconds[0]) / max(1, more - few), self.config.regime.attack_images
        left = max(0.0, _LARGEST_SHARE * plan.seconds - seconds[0])
        if attacked is None and each * whole > left:
            self._final_images = min(whole, max(more, int(left / each)))
        if self._final_images < whole:
            self.display.note(
                f"the last evaluation takes {self._final_images:,} of {whole:,} images, evenly spread, so that "
                f"{1 - _LARGEST_SHARE:.0%} of the minutes are left; skewconv evaluate takes all"
            )
        plan.reserve = seconds[0] + each * min(self._final_images, attacked or whole) + 2 * self._saving
        if self.position.step == 0 and plan.time_to_train() <= 0:
            # A third of the budget, at least, for steps.
            enough = math.ceil(15 * (plan.spent + plan.reserve) / 60) / 10
            raise ArgumentError(
                f"--minutes is {plan.seconds / 60:g}, which leaves no time to train: the start took "
                f"{clock_time(plan.spent)}, and the last evaluation, of {self._final_images:,} images, takes about "
                f"{clock_time(plan.reserve)} here; give --minutes {enough:g} or more, or --epochs"
            )

    def _finish(self, logs: Logs | None) -> Outcome:
        number = "all" if self._final_images == len(self.splits.eval) else f"{self._final_images:,}"
        what = f"evaluating on {number} {self.splits.name} images"
        metrics = self._first_alone(lambda: self._evaluate(what, self._final_images))
        self.position = replace(self.position, finished=True, seconds=self.plan.spent)
        results = {
            "status": "finished",
            "steps": self.position.step,
            "epochs": self._epochs(),
            "seconds": round(self.position.seconds, 3),
            "processes": self.fabric.world_size,
            "split": self.splits.name,
            **metrics.plain(),
        }
        self.record = {**self.record, "results": results}
        if logs is not None:
            self._log(logs, metrics)
        self._save()
        return self._outcome(metrics=metrics, record=self.record)

    # Checkpoints

    def _save_if_due(self) -> None:
        """By the clock of the first process. It does not end several of them alone: the next loss ends all."""
        due = self.is_first and self.clock() - self._saved_at >= self.checkpoint_seconds
        if due and (self.fabric.world_size == 1 or self.stepper.finite()):
            self._save()

    def _refuse_divergence(self) -> None:
        if not self.stepper.finite():
            raise self._diverged(f"a weight is no number after step {self.position.step}")

    def _save(self) -> None:
        self._refuse_divergence()
        if not self.is_first:
            return
        began = self.clock()
        header = Header(self.config, self.facts, self.position, self.record)
        stepper, scaler = self.stepper, self.stepper.precision.state_dict()
        save(self.folder / FILE, header, stepper.model, stepper.optimizer, scaler)
        if not self._recorded or self.position.finished:
            remove_leftovers(self.folder / RECORD)
            write_record(self.folder / RECORD, self.record)
            self._recorded = True
        self._saved_step, self._saved_at = self.position.step, self.clock()
        self._saving = self._saved_at - began
