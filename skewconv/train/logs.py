"""The logs of a run: a CSV file for people and spreadsheets, and TensorBoard."""

import csv
import io
import os
from pathlib import Path
from typing import Any

from skewconv.extras import optional
from skewconv.records import WriteError, atomic_write

COLUMNS = ("step", "epoch", "seconds", "lr", "loss", "accuracy", "images_per_second")
CSV_FILE = "log.csv"
TENSORBOARD_FOLDER = "tensorboard"


class Logs:
    """Rows of figures, appended as they come. What a killed process logged after its last checkpoint is removed.

    Args:
        folder: of the run.
        step: where the run goes on; later rows are taken out.
        judged: the split of the evaluations on the way; their columns bear its name.
    """

    def __init__(self, folder: Path, step: int, judged: str = "test") -> None:
        self.path = folder / CSV_FILE
        self.columns = (*COLUMNS, f"{judged}_clean", f"{judged}_certified")
        self._keep_until(step)
        try:
            self._file = open(self.path, "a", newline="", encoding="utf-8")  # noqa: SIM115
            writer = optional("torch.utils.tensorboard", "tensorboard").SummaryWriter
            self._board: Any = writer(os.fspath(folder / TENSORBOARD_FOLDER), purge_step=step + 1)
        except OSError as error:
            raise WriteError(f"{self.path} cannot be written: {error.strerror or error}") from error
        self._rows = csv.DictWriter(self._file, self.columns)

    def write(self, **figures: float) -> None:
        """One row; columns not given stay empty."""
        try:
            self._rows.writerow({name: _short(value) for name, value in figures.items()})
            self._file.flush()
        except OSError as error:
            raise WriteError(f"{self.path} cannot be written: {error.strerror or error}; free some space") from error
        for name, value in figures.items():
            if name not in ("step", "epoch"):
                self._board.add_scalar(name, value, int(figures["step"]))

    def close(self) -> None:
        """Flush and close both."""
        self._file.close()
        self._board.close()

    def _keep_until(self, step: int) -> None:
        kept: list[dict[str, str]] = []
        if self.path.exists():
            with open(self.path, newline="", encoding="utf-8", errors="replace") as file:
                kept = [row for row in csv.DictReader(file) if self._whole(row) and int(row["step"]) <= step]
        text = io.StringIO()
        rows = csv.DictWriter(text, self.columns)
        rows.writeheader()
        rows.writerows(kept)
        atomic_write(self.path, text.getvalue().encode())

    def _whole(self, row: dict[Any, Any]) -> bool:
        """A row cut off by a kill has too few columns, and a foreign file has others."""
        return set(row) == set(self.columns) and None not in row.values() and str(row["step"]).isdigit()


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
