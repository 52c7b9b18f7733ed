"""The log of a training run as columns."""

import csv
import itertools
import math
from dataclasses import dataclass
from pathlib import Path

_BY_EPOCH = ("step", "epoch", "seconds")


@dataclass(frozen=True)
class TrainingLog:
    """The rows of log.csv: each column as (epoch, value) where it has a value, and the seconds that each epoch took.

    Arguments:
        columns: the name of a column -> its points. Epochs are fractional: a step in the middle of one is at .5.
        seconds_per_epoch: (number of the epoch from 1, its seconds), for epochs that were logged from end to end.
    """

    columns: dict[str, list[tuple[float, float]]]
    seconds_per_epoch: list[tuple[float, float]]

    def ending_with(self, ending: str) -> list[tuple[float, float]]:
        """The points of the first column whose name ends so, such as "clean" for test_clean; none if there is none."""
        return next((points for name, points in self.columns.items() if name.endswith(ending)), [])


def read_log(path: Path) -> TrainingLog:
    """Read log.csv; a file that is missing, and rows that were cut off, are left out."""
    try:
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            # Python 3.10 refuses a file for one such character.
            rows = [_numbers(row) for row in csv.DictReader(line for line in file if "\0" not in line)]
    except OSError:
        rows = []
    rows = [row for row in rows if "step" in row and "epoch" in row]
    steps = _steps_of_an_epoch(rows)
    columns: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        at = row["step"] / steps if steps else row["epoch"]
        for name, value in row.items():
            if name not in _BY_EPOCH:
                columns.setdefault(name, []).append((at, value))
    return TrainingLog(columns, _seconds_per_epoch(rows))


def _numbers(row: dict[str, str | None]) -> dict[str, float]:
    found = {}
    for name, text in row.items():
        try:
            value = float(text or "")
        except (TypeError, ValueError):
            continue
        if name and math.isfinite(value):
            found[name] = value
    return found


def _steps_of_an_epoch(rows: list[dict[str, float]]) -> float:
    """From the last row that is in an epoch after the first: steps so far over epochs so far."""
    firsts: dict[float, float] = {}
    for row in rows:
        firsts.setdefault(row["epoch"], row["step"])
    whole = [(epoch, step) for epoch, step in firsts.items() if epoch >= 1]
    return whole[-1][1] / whole[-1][0] if whole else 0.0


def _seconds_per_epoch(rows: list[dict[str, float]]) -> list[tuple[float, float]]:
    """The time from the first row of an epoch to the first row of the next."""
    firsts: dict[float, float] = {}
    for row in rows:
        if "seconds" in row:
            firsts.setdefault(math.floor(row["epoch"]), row["seconds"])
    starts = sorted(firsts.items())
    found = []
    for (epoch, begun), (following, ended) in itertools.pairwise(starts):
        # A clock that goes back belongs to a run that was interrupted and resumed.
        if following == epoch + 1 and ended >= begun:
            found.append((epoch + 1.0, ended - begun))
    return found
