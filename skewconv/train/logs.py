"""The log of a run: a CSV file for spreadsheets, and TensorBoard."""

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skewconv.extras import optional
from skewconv.records import WriteError, atomic_write

COLUMNS = ("step", "epoch", "seconds", "lr", "loss", "accuracy", "images_per_second")
CSV_FILE = "log.csv"
TENSORBOARD_FOLDER = "tensorboard"


class Logs:
    """log.csv and TensorBoard from `step` on, of a split; later rows, of a process that was killed, are removed."""

    def __init__(self, folder: Path, step: int, split: str = "test", radii: Sequence[str] = ()) -> None:
        self.path, self._split = folder / CSV_FILE, split
        # The first radius is the one that is shown on the way, and has the plain name.
        first = radii[:1] and (f"{split}_certified",)
        others = tuple(f"{split}_certified_{name}" for name in radii[1:])
        self.columns = (*COLUMNS, f"{split}_clean", *first, *others)
        kept: list[dict[str, str]] = []
        if self.path.exists():
            with open(self.path, newline="", encoding="utf-8", errors="replace") as file:
                kept = [row for row in csv.DictReader(file) if self._whole(row) and int(row["step"]) <= step]
        text = io.StringIO()
        rows = csv.DictWriter(text, self.columns)
        rows.writeheader()
        rows.writerows(kept)
        atomic_write(self.path, text.getvalue().encode())
        try:
            self._file = open(self.path, "a", newline="", encoding="utf-8")  # noqa: SIM115
            writer = optional("torch.utils.tensorboard", "tensorboard").SummaryWriter
            self._board: Any = writer(os.fspath(folder / TENSORBOARD_FOLDER), purge_step=step + 1)
        except OSError as error:
            raise WriteError(f"{self.path} cannot be written: {error.strerror or error}") from error
        self._rows = csv.DictWriter(self._file, self.columns)

    def write(
        self, row: dict[str, float], clean: float | None = None, certified: Mapping[str, float] | None = None
    ) -> None:
        """One row, with the accuracies of an evaluation if there was one; columns not given stay empty."""
        found: dict[str, float] = {}
        tags: dict[str, float] = {}
        if clean is not None:
            found[f"{self._split}_clean"] = tags[f"{self._split}/clean"] = clean
            for number, (name, share) in enumerate((certified or {}).items()):
                found[f"{self._split}_certified" + (f"_{name}" if number else "")] = share
                tags[f"{self._split}/certified at {name}"] = share
        try:
            values = {**row, **found}.items()
            self._rows.writerow({name: value if isinstance(value, int) else f"{value:.6g}" for name, value in values})
            self._file.flush()
        except OSError as error:
            raise WriteError(f"{self.path} cannot be written: {error.strerror or error}; free some space") from error
        tags |= {f"train/{name}": value for name, value in row.items() if name not in ("step", "epoch")}
        for name, value in tags.items():
            self._board.add_scalar(name, value, int(row["step"]))

    def close(self) -> None:
        self._file.close()
        self._board.close()

    def _whole(self, row: dict[Any, Any]) -> bool:
        """A row cut off by a kill has too few columns, and a foreign file has others; an older log may have fewer."""
        known = set(COLUMNS) <= set(row) <= set(self.columns)
        return known and None not in row.values() and str(row["step"]).isdigit()


def read_log(path: Path) -> list[dict[str, float]]:
    """The rows of log.csv with their finite numbers; a missing file and rows that were cut off are left out."""
    try:
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            # Python 3.10 refuses a file for one such character.
            rows = [_numbers(row) for row in csv.DictReader(line for line in file if "\0" not in line)]
    except OSError:
        return []
    return [row for row in rows if "step" in row and "epoch" in row]


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
