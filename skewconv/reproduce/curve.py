"""The course of a run: its accuracies on the way against its minutes, from its log."""

import csv
from pathlib import Path

from skewconv.train.logs import CSV_FILE


def curve(folder: Path) -> list[dict[str, float]]:
    """One point for each evaluation: epoch, minutes, clean accuracy, and certified accuracy if there is one.

    Args:
        folder: of the run. Its evaluations on the way take a sample of the images that judge it, the last takes all.
            One that ended before its first step has no log.
    """
    points: list[dict[str, float]] = []
    if not (folder / CSV_FILE).exists():
        return points
    with open(folder / CSV_FILE, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            shares = {name.rpartition("_")[2]: row[name] for name in row if name.endswith(("_clean", "_certified"))}
            if shares["clean"]:
                point = {"epoch": float(row["epoch"]), "minutes": float(row["seconds"]) / 60}
                points.append(point | {name: float(share) for name, share in shares.items() if share})
    return points
