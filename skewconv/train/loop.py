"""The training loop: steps, evaluations on the way, checkpoints, and an orderly end whatever happens."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from skewconv.choices import radius_name
from skewconv.config import TrainConfig, to_dict
from skewconv.errors import SkewconvError
from skewconv.records import make_record, remove_leftovers, write_record
from skewconv.train.budget import StepPlan, TimePlan
from skewconv.train.build import DataFacts, Parts, build_model, check_data, epoch_batches
from skewconv.train.checkpoint import Checkpoint, Header, Position, random_states, restore_random_states, save
from skewconv.train.data import Batches
from skewconv.train.evaluate import Figures
from skewconv.train.hardware import is_lost_connection
from skewconv.train.judging import Judging, StopRequestedError, refuse_short_budget
from skewconv.train.logs import Logs
from skewconv.train.outcome import DivergedError, LostProcessError, Outcome
from skewconv.train.places import FILE, RECORD, existing_checkpoint
from skewconv.train.progress import Display, Silent, Status
from skewconv.train.signals import StopSignals
from skewconv.train.step import Stepper

# Waiting for an accelerator after every step would idle it; the CPU has nothing to wait for.
_FLUSH_STEPS = {"cpu": 1}
_FLUSH_STEPS_ELSEWHERE = 20
_ROWS_AN_EPOCH = 10

T = TypeVar("T")


class Trainer:
    """A run in a folder, from its start or its last checkpoint to its end.

    Args:
        config: what to train.
        fabric: Lightning Fabric, launched.
        folder: where the run lies; it exists.
        parts: the images, see :func:`skewconv.train.build.parts`.
        checkpoint: where to go on from.
        display: what a person sees.
        checkpoint_seconds: the time between checkpoints; 0 writes one after each step.
        clock: seconds that only grow.
        started: when the budget began, by that clock.
        closing: seconds of the budget that will pass after `fit`.
    """

    def __init__(
        self,
        config: TrainConfig,
        fabric: Any,
        folder: Path,
        parts: Parts,
        *,
        checkpoint: Checkpoint | None = None,
        display: Display | None = None,
        checkpoint_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        started: float | None = None,
        closing: float = 0.0,
    ) -> None:
        self.config, self.fabric, self.folder, self.parts = config, fabric, folder, parts
        self.facts = DataFacts.of(parts.data)
        self.display: Display = display or Silent()
        self.checkpoint_seconds, self.clock, self.closing = checkpoint_seconds, clock, closing
        self.is_first = bool(fabric.is_global_zero)
        self.display.work("building the network")
        torch.manual_seed(config.seed)
        model = build_model(config, self.facts)
        self.position = Position()
        self.record = make_record("train", config=to_dict(config), seed=config.seed, results={"status": "unfinished"})
        if checkpoint is not None:
            check_data(parts.data, checkpoint.header.data)
            checkpoint.restore_trained(model)
            self.position, self.record = checkpoint.header.position, checkpoint.header.record
        elif config.init is not None:
            Checkpoint(existing_checkpoint(config.init)).initialise(model)
        self.stepper = Stepper(config, fabric, model, self.position.step)
        if checkpoint is not None:
            checkpoint.restore_model(self.stepper.judged)
        self.signals = StopSignals()
        self.judging = Judging(config, parts, self.stepper.judged, fabric.device, self.display, self.signals)
        if checkpoint is not None:
            checkpoint.restore_optimizer(self.stepper.optimizer)
            checkpoint.restore_scaler(self.stepper.precision)
            restore_random_states(checkpoint.random())
        self._begun = (clock() if started is None else started) - self.position.seconds
        self.plan = self._make_plan()
        self._saved_step: int | None = None if checkpoint is None else self.position.step
        self._saved_at, self._saving = clock(), 0.0
        # A run that is extended is not finished any more, and its record says so from the first checkpoint on.
        self._recorded = False
        self._pending: list[Tensor] = []
        self._loss = self._accuracy = 0.0
        self._shown = False
        self._latest: Figures | None = None
        self._speed: float | None = None

    def fit(self) -> Outcome:
        """Train to the end, or until a signal; then judge the network on all images kept for that."""
        if self.position.finished:
            return Outcome(self.position, record=self.record)
        names = tuple(map(radius_name, self.config.radii)) if self.config.regime.regime == "provable" else ()
        logs = Logs(self.folder, self.position.step, self.parts.name, names) if self.is_first else None
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
                return self._finish(logs) if stopped is None else Outcome(self.position, stopped_by=stopped)
        except StopRequestedError as request:
            # The weights were saved before the network was judged, and are the same.
            return Outcome(self.position, stopped_by=request.signal)
        except RuntimeError as error:
            if self.fabric.world_size > 1 and is_lost_connection(error):
                raise self._lost(error) from error
            raise
        finally:
            if logs is not None:
                logs.close()
            self.display.close()

    # The loop

    def _train(self, signals: StopSignals, logs: Logs | None) -> signal.Signals | None:
        while self.plan.done < 1:
            batches = self._batches()
            rows = max(1, batches.steps // _ROWS_AN_EPOCH)
            for images, labels in batches:
                at = self.position
                figures = self.stepper.step(images, labels, done=self.plan.done, epoch=at.epoch, step=at.step_in_epoch)
                self._pending.append(figures)
                self.plan.advance()
                stop = self._agree(signals.received)
                self._move(at.epoch, at.step_in_epoch + 1)
                self._flush_if_due(len(labels) * self.fabric.world_size)
                last, figures_now = at.step_in_epoch + 1 == batches.steps, None
                if last:
                    self._move(at.epoch + 1, 0, steps=0)
                    try:
                        figures_now = self._evaluate_if_due(at.epoch + 1)
                    except StopRequestedError as request:
                        stop = request.signal
                # The row of the last step waits for the last evaluation.
                if logs is not None and self.plan.done < 1 and (last or self.position.step % rows == 0):
                    self._log(logs, figures_now)
                self._save_if_due()
                if stop is not None or self.plan.done >= 1:
                    self._flush()
                    return stop
        return None

    def _batches(self) -> Batches:
        at = self.position
        return epoch_batches(self.config, self.parts, self.fabric, epoch=at.epoch, start_step=at.step_in_epoch)

    def _make_plan(self) -> StepPlan | TimePlan:
        if self.config.minutes is None:
            assert self.config.epochs is not None
            return StepPlan(self.config.epochs * self._batches().steps, self.position.step, self.clock)
        return TimePlan(60 * self.config.minutes, began=self._begun, done=self.position.done, clock=self.clock)

    def _move(self, epoch: int, step_in_epoch: int, steps: int = 1) -> None:
        self.position = Position(
            step=self.position.step + steps,
            epoch=epoch,
            step_in_epoch=step_in_epoch,
            done=self.plan.done,
            seconds=self.clock() - self._begun,
        )

    def _agree(self, received: signal.Signals | None) -> signal.Signals | None:
        """All processes follow the clock of the first, and stop together if any of them was asked to."""
        if self.fabric.world_size == 1:
            return received
        mine = torch.tensor([float(received or 0), self.plan.done if self.is_first else 0.0], dtype=torch.float64)
        number, done = self.fabric.all_reduce(mine.to(self.fabric.device), reduce_op="max").tolist()
        if isinstance(self.plan, TimePlan):
            self.plan.done = done
        return signal.Signals(int(number)) if number else None

    # Figures

    def _flush_if_due(self, images: int) -> None:
        if self.position.step % _FLUSH_STEPS.get(self.fabric.device.type, _FLUSH_STEPS_ELSEWHERE) == 0:
            self._flush()
            self._show(images)

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

    def _lost(self, error: RuntimeError) -> LostProcessError:
        kept = "" if self._saved_step is None else f" The last checkpoint, of step {self._saved_step}, is kept:"
        return LostProcessError(
            f"another of the {self.fabric.world_size} processes of this run died or cannot be reached "
            f"({str(error).splitlines()[0][:160]}).{kept} go on with --resume --out {self.folder}"
        )

    def _show(self, images: int) -> None:
        seconds = self.plan.pace.seconds or 0.0
        self._speed = images / seconds if seconds else 0.0
        epoch = self.position.epoch + self.position.step_in_epoch / self._batches().steps
        done = self.plan.done
        self.display.show(
            Status(
                step=self.position.step,
                epoch=epoch,
                epochs=self.config.epochs or (epoch / done if done > 0.01 else None),
                done=done,
                loss=self._loss,
                accuracy=self._accuracy,
                images_per_second=self._speed,
                seconds_left=self.plan.seconds_left(),
                judged=self.parts.name,
                clean=self._latest.clean if self._latest else None,
                certified=self._latest.first_certified if self._latest else None,
            )
        )

    def _log(self, logs: Logs, figures: Figures | None) -> None:
        row: dict[str, float] = {
            "step": self.position.step,
            "epoch": self.position.epoch,
            "seconds": self.position.seconds,
            "lr": self.stepper.lr,
        }
        # A run that was stopped in its last evaluation has made no step since.
        if self._shown:
            row |= {"loss": self._loss, "accuracy": self._accuracy, "images_per_second": self._speed or 0.0}
        logs.write(row, figures)

    # Evaluation

    def _evaluate_if_due(self, epoch: int) -> Figures | None:
        if epoch % self.config.eval_every or self.plan.done >= 1:
            return None
        # A network that has diverged is not judged: that would be refused for other reasons.
        self._flush()
        self._refuse_divergence()
        self._latest = self._first_alone(self.judging.on_the_way)
        self.plan.pace.pause_ended()
        return self._latest

    def _first_alone(self, work: Callable[[], T]) -> T:
        """What the first process finds, told to all; what stops or refuses it stops all of them."""
        found: T | None = None
        trouble: StopRequestedError | SkewconvError | None = None
        if self.is_first:
            try:
                found = work()
            except (StopRequestedError, SkewconvError) as error:
                trouble = error
        if self.fabric.world_size > 1:
            # Not every error can be sent: the others are told its words, or the signal.
            words = None if trouble is None else str(trouble)
            number = trouble.signal if isinstance(trouble, StopRequestedError) else None
            found, words, number = self.fabric.broadcast((found, words, number))
            if words is not None and not self.is_first:
                trouble = SkewconvError(words) if number is None else StopRequestedError(number)
        if trouble is not None:
            raise trouble
        return cast(T, found)

    def _measure_ending(self) -> None:
        """How long the last evaluation and the checkpoints before and after it take, so that a budget has room."""
        if not isinstance(plan := self.plan, TimePlan) or plan.done >= 1:
            return

        def measure() -> None:
            rest = 2 * self._saving + self.closing
            plan.expect_ending(self.judging.seconds_of_the_end(self.clock, plan.seconds), rest)
            if self.position.step == 0:
                refuse_short_budget(plan, self.judging.last_images)

        self._first_alone(measure)
        plan.pace.pause_ended()

    def _finish(self, logs: Logs | None) -> Outcome:
        """The figures of all images judged, from the first process to all; the record and the last checkpoint."""
        figures = self._first_alone(self.judging.in_the_end)
        self.position = Position(**{**vars(self.position), "finished": True, "seconds": self.clock() - self._begun})
        results = {
            "status": "finished",
            "steps": self.position.step,
            "epochs": self.position.epoch + self.position.step_in_epoch / self._batches().steps,
            "seconds": round(self.position.seconds, 3),
            "processes": self.fabric.world_size,
            "split": self.parts.name,
            **figures.plain(),
        }
        self.record = {**self.record, "results": results}
        if logs is not None:
            self._log(logs, figures)
        self._save()
        return Outcome(self.position, figures=figures, record=self.record)

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
        trained = None if stepper.average is None else stepper.model
        save(self.folder / FILE, header, stepper.judged, stepper.optimizer, random_states(), scaler, trained)
        if not self._recorded or self.position.finished:
            remove_leftovers(self.folder / RECORD)
            write_record(self.folder / RECORD, self.record)
            self._recorded = True
        self._saved_step, self._saved_at = self.position.step, self.clock()
        self._saving = self._saved_at - began
