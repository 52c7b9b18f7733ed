"""The runs of a table, one after the other: each resumed where it stopped, and one record for each that is done.

The folder of a study holds table2.md, .csv and .tex, made anew after every run; records/lipconvnet-5-soc-0.json and its
like, one for each row and seed; and lipconvnet-5/soc/seed-0 and its like, the runs, with their checkpoints and logs.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from skewconv.choices import Scale
from skewconv.config import to_dict
from skewconv.records import write_record
from skewconv.reproduce.changes import Changes
from skewconv.reproduce.curve import curve
from skewconv.reproduce.jacobians import largest_jacobian
from skewconv.reproduce.job import PROCESSOR, Job
from skewconv.reproduce.rows import Row
from skewconv.reproduce.scales import config_of
from skewconv.train.build import Splits, load_data, make_splits
from skewconv.train.evaluate import evaluate
from skewconv.train.logs import Display
from skewconv.train.loop import DivergedError, StopSignals
from skewconv.train.run import open_run
from skewconv.train.session import BusyError, Session


@dataclass(frozen=True)
class Study:
    """Rows of an experiment at a scale, in a folder.

    Args:
        experiment: its name, such as table2.
        scale: paper or cpu.
        rows: which.
        out: the folder.
        seeds: of every row; by default 0, and at the cpu scale what the row says.
        changes: of the recipe of the scale.
        command: what a person types to do the same.
        processor_time: budgets of minutes are those of the processor, not of the clock on the wall.
    """

    experiment: str
    scale: Scale
    rows: tuple[Row, ...]
    out: Path
    seeds: tuple[int, ...] = ()
    changes: Changes = field(default_factory=Changes)
    command: str = ""
    processor_time: bool = False

    def jobs(self) -> list[Job]:
        """Every row with each of its seeds, in the order of the table."""
        return list(self._jobs())

    def _jobs(self) -> Iterator[Job]:
        for row in self.rows:
            for seed in self.seeds or (row.cpu_seeds if self.scale == "cpu" else (0,)):
                yield Job(row, seed, config_of(row, self.scale, seed, self.changes), self.out)

    def records(self) -> list[dict[str, Any]]:
        """The records of all that is finished."""
        return [record for job in self.jobs() if (record := job.record()) is not None]

    def matching_times(self, times: dict[str, Any]) -> dict[str, Any]:
        """A record of `measure` with those rows only that are measured as they are run."""
        configs = {job.row.name: job.config for job in self.jobs()}
        rows = {
            name: row
            for name, row in times["results"]["rows"].items()
            if name in configs
            and (row["model"], row["batch_size"]) == (to_dict(configs[name].model), configs[name].loading.batch_size)
        }
        return {**times, "results": {**times["results"], "rows": rows}}

    def seconds_left(self, job: Job, times: dict[str, Any] | None) -> float | None:
        """How long a run still takes: from its own pace, or from what was measured; None if neither is known."""
        if job.record() is not None:
            return 0.0
        left = 1.0 - job.done()
        if job.config.minutes is not None:
            return 60 * job.config.minutes * left
        if times is not None and (row := times["results"]["rows"].get(job.row.name)):
            assert job.config.epochs is not None
            return float(row["seconds_an_epoch"]) * job.config.epochs * left
        checkpoint = job.checkpoint()
        if checkpoint is None or not checkpoint.header.position.done:
            return None
        position = checkpoint.header.position
        return position.seconds * left / position.done

    def run(
        self,
        fabric: Any,
        display: Callable[[], Display] = Display,
        note: Callable[[str], None] = lambda text: None,
        finished: Callable[[Job], None] = lambda job: None,
        checkpoint_seconds: float = 60.0,
    ) -> int | None:
        """Run what is left, row by row; the signal that stopped it, or None if all was gone through.

        A run that another process has in hand is left to it, so that several processes can share a study.

        Args:
            fabric: Lightning Fabric, launched.
            display: makes what shows the progress of one run.
            note: takes a line for a person.
            finished: called after each record.
            checkpoint_seconds: the time between checkpoints.
        """
        with StopSignals() as signals:
            for job in self.jobs():
                if signals.received is not None:
                    return signals.received
                # The first process decides for all: another study may finish this run just now.
                if fabric.broadcast(fabric.is_global_zero and job.record() is not None):
                    continue
                note(f"{job.row.name}, seed {job.seed}")
                try:
                    outcome = Session(job.config, _splits(job), fabric).train(
                        job.folder,
                        extendable=False,
                        display=display,
                        checkpoint_seconds=checkpoint_seconds,
                        clock=time.process_time if self.processor_time else time.monotonic,
                    )
                except BusyError:
                    note(f"{job.row.name}, seed {job.seed}: another process has it in hand; left to it")
                    continue
                except DivergedError:
                    pass  # a result too
                else:
                    if outcome.stopped_by is not None:
                        return outcome.stopped_by
                if fabric.is_global_zero:
                    self._write(job)
                    finished(job)
                fabric.barrier()
        return None

    def _write(self, job: Job) -> None:
        """The record of a run that ended: where and how it began, its figures, and what it was run for."""
        run = open_run(job.folder)
        record = run.checkpoint.header.record
        results: dict[str, Any] = {"status": "diverged"} if not run.position.finished else dict(record["results"])
        # Wall time says how busy the machine was; `reproduce --time` measures speed.
        name = "cpu_seconds" if self.processor_time else "wall_seconds"
        spent = {name: results.pop("seconds")} if "seconds" in results else {}
        command = f"{self.command} --rows {job.row.name} --seeds {job.seed}"
        facts = {"experiment": self.experiment, "row": job.row.name, "scale": self.scale, "command": command}
        if self.processor_time:
            facts["minutes_of"] = PROCESSOR
        if run.position.finished:
            results |= _judged_by_all(job, run.model, results["images"])
        if job.config.model.conv == "soc" and run.position.finished:
            results["jacobian"] = largest_jacobian(run.model, run.input_shape)
        results["curve"] = curve(job.folder)
        job.record_path.parent.mkdir(parents=True, exist_ok=True)
        write_record(job.record_path, {**record, "kind": "reproduce", "results": {**facts, **results, **spent}})


def _judged_by_all(job: Job, model: nn.Module, images: int) -> dict[str, Any]:
    """The figures of all images, where a budget of minutes had time for some of them only."""
    split = _splits(job).eval
    return {} if images == len(split) else evaluate(model, split, job.config).plain()


def _splits(job: Job) -> Splits:
    return make_splits(job.config, load_data(job.config))
