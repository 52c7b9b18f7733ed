"""The ablations of RESULTS.md: a sentence and a small table for each thing that was changed."""

from itertools import groupby
from typing import Any

from result_records import records, times

from skewconv.reproduce.formats import markdown
from skewconv.reproduce.noise import Noise, compared, noise_of
from skewconv.reproduce.rows import Row, chosen_rows
from skewconv.reproduce.table import table_of

RADIUS = "36/255"
SIZE = "lipconvnet-5/"
TITLES = {
    "series": "Series in training",
    "norm-bound": "Norm bound",
    "padding": "Border",
    "activation": "Activation",
    "head": "Head",
    "offset": "Offset of the loss",
    "average": "Average of the weights",
    "batch": "Batch",
    "flip": "Flips",
    "shift": "Shift",
}


def certified(record: dict[str, Any]) -> float:
    """In percent; nothing is certified by a run that diverged."""
    results = record["results"]
    return 100 * results["certified"][RADIUS] if results["status"] == "finished" else 0.0


def sentence(base: list[float], shares: dict[str, list[float]], noise: Noise) -> str:
    """What each change did to the certified accuracy, those apart that seeds may have done as well."""
    told: dict[bool, list[str]] = {True: [], False: []}
    for name, share in shares.items():
        difference, counts = compared(share, base, noise)
        told[counts].append(f"{name} {difference:+.2f}")
    parts = [f"{', '.join(told[True])} points"] if told[True] else []
    parts += [f"within noise: {', '.join(told[False])}"] if told[False] else []
    return f"Certified at {RADIUS} against the base: {'; '.join(parts)}."


def ablations(data: str) -> str:
    """Group by group, each beside the base."""
    found, measured = records("ablations"), times("ablations")
    first, *others = chosen_rows("ablations", data, ("all",), "cpu")
    shares = _by_row(found)
    # Table 2 has networks of the same size and epochs: their seeds say as much about the noise.
    noise = noise_of([*shares.values(), *(found for row, found in _by_row(records("table2")).items() if SIZE in row)])
    lines = []
    if noise is not None:
        lines += [
            f"Between seeds the certified accuracy at {RADIUS}, here and at depth 5 of Table 2, {noise.in_words()}.",
            "",
        ]
    notes: list[str] = []
    left: list[str] = []
    for what, group in groupby(others, key=lambda row: row.name.split("/")[0]):
        members = list(group)
        done = {row.name.split("/")[1]: shares[row.name] for row in members if row.name in shares}
        left += [row.name for row in members if row.name not in shares]
        if not done:
            continue
        told = sentence(shares[first.name], done, noise) if noise is not None and first.name in shares else ""
        lines += [f"**{TITLES[what]}.** {told}", "", *_cells(data, [first, *members], found, measured), ""]
        notes = markdown(table_of("ablations", data, [first, *members], found, measured)).splitlines()
    if left:
        lines += [f"Not run yet: {', '.join(left)}.", ""]
    return "\n".join([*lines, *(line for line in notes if line.startswith("- "))])


def _by_row(found: list[dict[str, Any]]) -> dict[str, list[float]]:
    shares: dict[str, list[float]] = {}
    for record in found:
        shares.setdefault(record["results"]["row"], []).append(certified(record))
    return shares


def _cells(data: str, rows: list[Row], found: list[dict[str, Any]], measured: dict[str, Any] | None) -> list[str]:
    text = markdown(table_of("ablations", data, rows, found, measured))
    return [line for line in text.splitlines() if line.startswith("|")]
