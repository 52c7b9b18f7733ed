"""The course of a run: its accuracies on the way against its minutes, from its log."""

import csv
from pathlib import Path

from skewconv.config import TrainConfig
from skewconv.train.logs import CSV_FILE


def curve(folder: Path, config: TrainConfig) -> list[dict[str, float]]:
    """One point for each evaluation on the way: epoch, minutes, clean accuracy, and certified accuracy if there is one.

    Args:
        folder: of the run. Its evaluations on the way take a sample of the images that judge it.
        config: of the run, which says after which epochs it was evaluated.
    """
    points = []
    with open(folder / CSV_FILE, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            shares = {name.rpartition("_")[2]: row[name] for name in row if name.endswith(("_clean", "_certified"))}
            epoch = int(row["epoch"])
            # The log repeats the latest evaluation at the end of every epoch; the last one has the result itself.
            if shares["clean"] and epoch % config.eval_every == 0 and epoch != config.epochs:
                point = {"epoch": float(epoch), "minutes": float(row["seconds"]) / 60}
                points.append(point | {name: float(share) for name, share in shares.items() if share})
    return points
