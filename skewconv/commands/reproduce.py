"""skewconv reproduce: the paper's tables, row by row, at the paper's scale or at that of two cores."""

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from skewconv.choices import Scale
from skewconv.commands import Json, Quiet, Switch, is_the_program, print_json, print_table
from skewconv.config import flag, require
from skewconv.errors import ArgumentError
from skewconv.progress import Progress, clock_time
from skewconv.records import atomic_write, write_record
from skewconv.reproduce.rows import EXPERIMENTS, Changes, chosen_rows
from skewconv.train.environment import Hardware, emulation_note, keep_freed_memory, make_folder

if TYPE_CHECKING:
    from skewconv.reproduce.study import Study
    from skewconv.reproduce.table import Table

_RUNS = Path("runs")


@dataclass(frozen=True)
class Reproduce:
    """Run the rows of the paper's Table 2, 3 or 4; after any stop, the same command resumes.

    Several processes may share the work: each takes rows that no other is running.
    """

    table: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="TABLE",
            help="Table of the paper: table2 (provable LipConvnets), table3 (ResNets), table4 (under attack); or of "
            "our own: ablations, recipes and refinements (one change at a time, after 3 epochs, after 30, and to "
            "what these found), decay (of weights), "
            "products and products-timed (training polynomials at equal steps and at equal time), norms (of layers), "
            "flagship (20, 60 and 240 minutes).",
        ),
    ]
    scale: Scale = "cpu"
    """Recipe: the paper's, 200 epochs at full width, or reduced for two cores, as the table says."""
    rows: tuple[str, ...] = ()
    """Rows, such as lipconvnet-5/soc, or all (none: the paper's, or at scale cpu those that two cores can train)."""
    seeds: tuple[int, ...] = ()
    """Seeds of every row (none: 0; at scale cpu three for some rows, which --list shows)."""
    data: str = "cifar10"
    """Dataset: cifar10, cifar100, digits or folder:PATH; the first two have the paper's results."""
    out: Path | None = None
    """Folder for runs, records and tables (none: one under runs/)."""
    changes: tyro.conf.OmitArgPrefixes[Changes] = field(default_factory=Changes)
    hardware: tyro.conf.OmitArgPrefixes[Hardware] = field(default_factory=Hardware)
    list: Switch = False
    """List the rows with their state and the time left, and run nothing."""
    time: Switch = False
    """Time a training step of every row side by side, and train nothing."""
    processor_time: Switch = False
    """Count minutes of processor time, with one thread, for a machine that does other work too."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints (0: after every step)."""
    quiet: Quiet = False
    json: Json = False

    def run(self) -> int:
        require(self, "checkpoint_seconds", 0 <= self.checkpoint_seconds < float("inf"), "0 or more")
        if self.table not in EXPERIMENTS:
            raise ArgumentError(f"TABLE is {self.table!r}: it must be one of {', '.join(EXPERIMENTS)}")
        rows = tuple(chosen_rows(self.table, self.data, self.rows, self.scale))
        with Progress("starting", quiet=self.quiet):
            from skewconv.progress import display_for
            from skewconv.reproduce.study import TIMES, Study, measure

        out = self.out or _RUNS / f"{self.table}-{self.data.partition(':')[0]}-{self.scale}"
        settings = (self.seeds, self.changes, self._command(), self.processor_time)
        study = Study(self.table, self.scale, rows, out, *settings)
        jobs = study.jobs()
        if self.list:
            self._print_list(study)
            return 0
        if is_the_program():
            keep_freed_memory()
        if self.processor_time:
            import torch

            alone = self.hardware.kind() == "cpu" and self.hardware.processes == 1
            require(self, "processor_time", alone, "left out with several processes, or on another device than cpu")
            # Threads that wait for one another spin, and would count.
            torch.set_num_threads(1)
        fabric = self.hardware.fabric(jobs[0].config)
        make_folder(study.out)
        if self.time:
            times = measure(self.table, {job.row.name: job.config for job in jobs}, fabric)
            if fabric.is_global_zero:
                write_record(study.out / TIMES, times)
                self._print(study)
            return 0

        def show(text: str) -> None:
            if fabric.is_global_zero and not self.quiet:
                print(text, file=sys.stderr, flush=True)

        if advice := emulation_note(jobs[0].config, fabric.device.type):
            show(advice)
        stopped = study.run(
            fabric,
            display=lambda: display_for(self.quiet),
            note=show,
            finished=lambda: self._write_table(study),
            checkpoint_seconds=self.checkpoint_seconds,
        )
        if fabric.is_global_zero:
            self._print(study)
            if stopped is not None:
                print("stopped, and saved: the same command resumes", file=sys.stderr)
        return 0 if stopped is None else 128 + stopped

    def _command(self) -> str:
        """The command line, without rows and seeds, which every record adds."""
        words = ["skewconv reproduce", self.table, "--scale", self.scale]
        words += [] if self.data == "cifar10" else ["--data", self.data.partition(":")[0]]
        for name, value in asdict(self.changes).items():
            words += [] if value is None else [flag(name), str(value)]
        words += ["--processor-time"] if self.processor_time else []
        return " ".join(words)

    def _write_table(self, study: "Study") -> "Table":
        from skewconv.reproduce.table import markdown, table_of

        table = table_of(self.table, self.data.partition(":")[0], study.rows, study.records(), study.times())
        atomic_write(study.out / f"{self.table}.md", markdown(table).encode())
        return table

    def _print(self, study: "Study") -> None:
        from skewconv.reproduce.table import markdown

        table = self._write_table(study)
        if self.json:
            self._print_json(study)
        else:
            print(markdown(table))
            print(f"in {study.out}: {self.table}.md, and records of every run")

    def _print_json(self, study: "Study") -> None:
        rows = [
            {"row": job.row.name, "seed": job.seed, "done": job.done(), "record": job.record()} for job in study.jobs()
        ]
        print_json({"table": self.table, "scale": self.scale, "rows": rows, "time": study.times()})

    def _print_list(self, study: "Study") -> None:
        if self.json:
            self._print_json(study)
            return
        lines, times = [], []
        for job in study.jobs():
            done, left = job.done(), study.seconds_left(job, study.times())
            state = "finished" if job.record() else "not begun" if done == 0 else f"{done:.0%} done"
            known = "" if job.record() else "time not known" if left is None else f"about {clock_time(left)} left"
            times.append(left)
            lines.append((str(job), f"{state:<10} {known}"))
        print_table(f"{self.table} at scale {self.scale}, in {study.out}", lines)
        if None in times:
            print(f"{self._command()} --time measures the rows; then the time left is known")
        else:
            print(f"about {clock_time(sum(filter(None, times)))} left in all")
