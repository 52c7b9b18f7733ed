"""How the figures of several seeds are shown to a person."""

import shlex
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skewconv.commands import print_json, print_table, program
from skewconv.train.mean_and_deviation import Figure
from skewconv.train.places import SEEDS
from skewconv.train.seeds import values_of


def print_seeds(folder: Path, record: Mapping[str, Any], stopped: int | None, *, as_json: bool) -> None:
    """The table of means and deviations, and how to go on if it was stopped.

    Args:
        folder: of all runs.
        record: of all runs.
        stopped: the signal that came; None if all was gone through.
        as_json: print the record instead.
    """
    results, place = record["results"], shlex.quote(str(folder))
    if as_json:
        print_json({**record, "run": str(folder)})
        return
    if rows := seed_rows(results):
        ended = len(results["ended"])
        count = f"{ended} seeds" if ended == results["seeds"] else f"{ended} of {results['seeds']} seeds"
        title = f"{record['config']['preset'] or record['config']['data']}: {count}, mean ± standard deviation"
        print_table(title, rows)
    if stopped is not None or results["status"] == "unfinished":
        said = "" if stopped is None else f"stopped by {signal.Signals(stopped).name}, and saved. "
        print(f"{said}Continue with:\n  {program()} train --resume --out {place}")
    print(f"the runs   {folder}/seed-...")
    print(f"the record {folder / SEEDS}")


def seed_rows(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and figures: mean and deviation in percent. A run that diverged is a result too: then there are none."""
    finished = [run for run in results["runs"].values() if run["status"] == "finished"]
    rows = []
    for name, values in values_of(finished).items():
        if name == "mean_radius":
            continue
        rows.append((_words(name), f"{Figure(tuple(100 * value for value in values))} %"))
    diverged = [(f"seed {seed}", "diverged: there is no mean") for seed in results["diverged"]]
    return diverged or rows


def _words(name: str) -> str:
    kind, slash, radius = name.partition("/")
    return f"certified accuracy at l2 radius {radius}" if slash else f"{kind} accuracy"
