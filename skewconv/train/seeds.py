"""The same training with several seeds: a folder for each, and one record of means and deviations.

runs/NAME/seed-0, seed-1, ... are runs like any other; runs/NAME/seeds.json is the record of all of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skewconv.config import TrainConfig, from_dict, to_dict
from skewconv.errors import ArgumentError
from skewconv.records import make_record, read_record, write_record
from skewconv.train.build import Parts
from skewconv.train.config_file import describe_run
from skewconv.train.go_on import Hold, checkpoint_of, train_the_rest
from skewconv.train.mean_and_deviation import Figure
from skewconv.train.places import RECORD, SEEDS
from skewconv.train.progress import Display, Silent
from skewconv.train.signals import StopSignals


@dataclass(frozen=True)
class SeedRuns:
    """Runs that differ in their seeds only.

    Attributes:
        config: of all; its seed is the first.
        count: how many seeds there are: those that follow the first.
        folder: holds their folders, and the record of all.
    """

    config: TrainConfig
    count: int
    folder: Path

    @property
    def configs(self) -> list[TrainConfig]:
        """One for each seed."""
        return [replace(self.config, seed=self.config.seed + number) for number in range(self.count)]

    def run_folder(self, config: TrainConfig) -> Path:
        """The folder of one run."""
        return self.folder / f"seed-{config.seed}"

    def ended(self) -> dict[int, dict[str, Any]]:
        """seed -> the results of the runs that are finished."""
        found: dict[int, dict[str, Any]] = {}
        for config in self.configs:
            path = self.run_folder(config) / RECORD
            if path.exists():
                record = read_record(path)
                if record["results"]["status"] == "finished" and from_dict(TrainConfig, record["config"]) == config:
                    found[config.seed] = record["results"]
        return found

    def run(
        self,
        fabric: Any,
        images: Parts,
        *,
        words: Sequence[str] | None = None,
        display: Callable[[], Display] = Silent,
        note: Callable[[str], None] = lambda text: None,
        **options: Any,
    ) -> tuple[dict[str, Any], int | None]:
        """Train what is left, one seed after the other: the record, and the signal that stopped it, if one did.

        A run that another process has in hand is left to it.

        Args:
            fabric: Lightning Fabric, launched.
            images: of all runs.
            words: of the command line, for the README of each run.
            display: makes what shows the progress of one run.
            note: takes a line for a person.
            options: further arguments of :class:`skewconv.train.loop.Trainer`.
        """
        ended = self.ended()
        for config in self.configs:
            # Refused before anything is written, if another recipe was begun here.
            checkpoint_of(self.run_folder(config), config, may_be_longer=True)
        self._write(fabric, ended)
        with StopSignals() as signals:
            for config in self.configs:
                if config.seed in ended:
                    continue
                folder = self.run_folder(config)
                with Hold(folder, fabric) as hold:
                    if not hold.ours:
                        note(f"seed {config.seed}: another process has it in hand; left to it")
                        continue
                    note(f"seed {config.seed}")
                    checkpoint = checkpoint_of(folder, config, may_be_longer=True)
                    if fabric.is_global_zero:
                        describe_run(folder, config, words)
                    outcome = train_the_rest(
                        folder, config, fabric, lambda: images, checkpoint=checkpoint, display=display, **options
                    )
                    fabric.barrier()
                if outcome is None:
                    ended[config.seed] = {"status": "diverged"}
                elif outcome.record is not None:
                    ended[config.seed] = outcome.record["results"]
                record = self._write(fabric, ended)
                stopped = signals.received if outcome is None else outcome.stopped_by or signals.received
                if stopped is not None:
                    return record, stopped
        return self._write(fabric, ended), None

    def _write(self, fabric: Any, ended: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
        # Another process may have ended some meanwhile.
        ended = {**self.ended(), **ended}
        record = make_record(
            "train-seeds", config=to_dict(self.config), seed=self.config.seed, results=summary(self.count, ended)
        )
        if fabric.is_global_zero:
            write_record(self.folder / SEEDS, record)
        return record


def stored_seeds(folder: Path) -> SeedRuns:
    """What was asked for in a folder of several seeds."""
    record = read_record(folder / SEEDS)
    if record["kind"] != "train-seeds":
        raise ArgumentError(f"{folder / SEEDS} is no record of several seeds: it is of the kind {record['kind']!r}")
    return SeedRuns(from_dict(TrainConfig, record["config"]), int(record["results"]["seeds"]), folder)


def summary(count: int, ended: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The results of all seeds: means where the record of one run has its figures, and deviations beside them.

    Args:
        count: how many seeds were asked for.
        ended: seed -> the results of its run. One that diverged is a result too: then there are no means.
    """
    finished = [results for results in ended.values() if results["status"] == "finished"]
    diverged = [seed for seed, results in ended.items() if results["status"] == "diverged"]
    status = "diverged" if diverged else "finished" if len(finished) == count else "unfinished"
    found: dict[str, Any] = {"status": status, "seeds": count, "ended": sorted(ended), "diverged": diverged}
    if finished and not diverged:
        found |= {name: finished[0][name] for name in ("split", "images")}
        figures = {name: Figure(tuple(values)) for name, values in values_of(finished).items()}
        found |= _nested({name: figure.mean for name, figure in figures.items()})
        found["deviation"] = _nested({name: figure.spread for name, figure in figures.items()})
    return {**found, "runs": {str(seed): dict(results) for seed, results in ended.items()}}


def values_of(runs: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """name -> the value of each run; certified accuracy is called certified/RADIUS."""
    found: dict[str, list[float]] = {}
    for results in runs:
        flat = {name: results[name] for name in ("clean", "attacked", "mean_radius") if name in results}
        flat |= {f"certified/{radius}": share for radius, share in results.get("certified", {}).items()}
        for name, value in flat.items():
            found.setdefault(name, []).append(value)
    return found


def _nested(flat: Mapping[str, float | None]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        outer, slash, inner = name.partition("/")
        if slash:
            nested.setdefault(outer, {})[inner] = value
        else:
            nested[outer] = value
    return nested
