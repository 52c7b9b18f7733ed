"""The accuracies of a run against its minutes, from its log."""

from pathlib import Path

from skewconv.train.logs import CSV_FILE, read_log


def curve(folder: Path) -> list[dict[str, float]]:
    """One point for each evaluation: epoch, minutes, clean accuracy, and certified accuracy if there is one.

    Args:
        folder: of the run. Its evaluations during training take a sample of the images, the last takes all. A run that
            ended before its first step has no log.
    """
    points: list[dict[str, float]] = []
    for row in read_log(folder / CSV_FILE):
        shares = {name.rpartition("_")[2]: row[name] for name in row if name.endswith(("_clean", "_certified"))}
        if "clean" in shares:
            points.append({"epoch": row["epoch"], "minutes": row["seconds"] / 60, **shares})
    return points
