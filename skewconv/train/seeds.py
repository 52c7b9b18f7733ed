"""The same training with several seeds: a folder for each, and one record of means and standard deviations.

runs/NAME/seed-0, seed-1, ... are runs like any other; runs/NAME/seeds.json is the record of all of them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from skewconv.config import TrainConfig, from_dict, to_dict
from skewconv.errors import ArgumentError
from skewconv.records import make_record, read_record, write_record
from skewconv.train.paths import RECORD, SEEDS
from skewconv.train.session import Session, checkpoint_of, train_each


@dataclass(frozen=True)
class MeanStd:
    """The mean and the sample standard deviation (None for a single value) of one value for each seed.

    >>> print(MeanStd((45.0, 46.0)), MeanStd((45.0,)))
    45.50 ± 0.71 45.00
    """

    values: tuple[float, ...]
    digits: int = 2

    @property
    def mean(self) -> float:
        """Of all values."""
        return fmean(self.values)

    @property
    def std(self) -> float | None:
        """Of a sample."""
        return stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        std = "" if self.std is None else f" ± {self.std:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{std}"


def summary(count: int, ended: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The results of all seeds: means under the names of the metrics of one run, and deviations."""
    finished = [results for results in ended.values() if results["status"] == "finished"]
    diverged = [seed for seed, results in ended.items() if results["status"] == "diverged"]
    status = "diverged" if diverged else "finished" if len(finished) == count else "unfinished"
    found: dict[str, Any] = {"status": status, "seeds": count, "ended": sorted(ended), "diverged": diverged}
    if finished and not diverged:
        found |= {name: finished[0][name] for name in ("split", "images")} | {"deviation": {}}
        for name, values in values_of(finished).items():
            metric, (outer, _, inner) = MeanStd(tuple(values)), name.partition("/")
            for table, value in ((found, metric.mean), (found["deviation"], metric.std)):
                (table.setdefault(outer, {}) if inner else table)[inner or outer] = value
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


@dataclass(frozen=True)
class SeedRuns:
    """Runs that differ in their seeds only: `count` seeds from that of the config on, in folders in `folder`."""

    config: TrainConfig
    count: int
    folder: Path

    @property
    def seeds(self) -> range:
        """All seeds."""
        return range(self.config.seed, self.config.seed + self.count)

    def run_folder(self, seed: int) -> Path:
        """The folder of one run."""
        return self.folder / f"seed-{seed}"

    def ended(self) -> dict[int, dict[str, Any]]:
        """seed -> the results of the runs that are finished."""
        found: dict[int, dict[str, Any]] = {}
        for seed in self.seeds:
            path = self.run_folder(seed) / RECORD
            if path.exists():
                record = read_record(path)
                same = from_dict(TrainConfig, record["config"]) == replace(self.config, seed=seed)
                if record["results"]["status"] == "finished" and same:
                    found[seed] = record["results"]
        return found

    def train(
        self, session: Session, *, note: Callable[[str], None] = lambda text: None, **options: Any
    ) -> tuple[dict[str, Any], int | None]:
        """Train what is left, one seed after the other: the record, and the signal that stopped it, or None."""
        ended, first, stopped = self.ended(), session.fabric.is_global_zero, None
        for seed in self.seeds:
            # Refused before anything is written, if another recipe was begun here.
            checkpoint_of(self.run_folder(seed), replace(self.config, seed=seed), extendable=True)
        self.write(ended, first)
        runs = (
            (seed, f"seed {seed}", partial(session.train, self.run_folder(seed), seed=seed, **options))
            for seed in self.seeds
            if seed not in ended
        )
        for seed, outcome, stopped in train_each(runs, note):
            if outcome is None:
                ended[seed] = {"status": "diverged"}
            elif outcome.record is not None:
                ended[seed] = outcome.record["results"]
            self.write(ended, first)
            if stopped is not None:
                break
        return self.write(ended, first), stopped

    def write(self, ended: Mapping[int, dict[str, Any]], first: bool = True) -> dict[str, Any]:
        """The record of all seeds, with those that another process ended meanwhile; written by the first process."""
        results = summary(self.count, {**self.ended(), **ended})
        record = make_record("train-seeds", config=to_dict(self.config), seed=self.config.seed, results=results)
        if first:
            write_record(self.folder / SEEDS, record)
        return record


def stored_seeds(folder: Path) -> SeedRuns:
    """The runs that were asked for in a folder of several seeds."""
    record = read_record(folder / SEEDS)
    if record["kind"] != "train-seeds":
        raise ArgumentError(f"{folder / SEEDS} is no record of several seeds: it is of the kind {record['kind']!r}")
    return SeedRuns(from_dict(TrainConfig, record["config"]), int(record["results"]["seeds"]), folder)
