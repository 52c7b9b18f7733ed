"""From records to a table in the paper's shape; the paper's own figures are marked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, TypeAlias

from skewconv.config import TrainConfig, from_dict
from skewconv.reproduce.rows import Row, reductions
from skewconv.reproduce.study import PROCESSOR

Record: TypeAlias = Mapping[str, Any]

_RADII = ("36/255", "72/255", "108/255")
# Names of metrics -> headings of their columns.
_HEADINGS = {
    "clean": "clean, %",
    **{f"certified/{radius}": f"certified at {radius}, %" for radius in _RADII},
    "attacked": "under PGD, %",
    "epochs": "epochs",
    "products_in_training": "products a layer in training",
    "products_in_evaluation": "products a layer in evaluation",
}
_COUNTS = ("epochs", "products_in_training", "products_in_evaluation")
_CERTIFIED = ("clean", *(f"certified/{radius}" for radius in _RADII))
Cell: TypeAlias = "MeanStd | str | None"


@dataclass
class MeanStd:
    """The mean and the sample standard deviation (None for a single value) of one value for each seed: 45.50 ± 0.71."""

    values: tuple[float, ...]
    digits: int = 2

    def __post_init__(self) -> None:
        self.mean = fmean(self.values)
        self.std = stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        std = "" if self.std is None else f" ± {self.std:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{std}"


@dataclass(frozen=True)
class Table:
    """A title, sentences that say what was done, the names of the columns, and the rows. None is an empty cell."""

    title: str
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Layout:
    """The columns of an experiment: the two parts of a row's name, our metrics, and those that the paper reports."""

    title: str
    names: tuple[str, str] = ("model", "convolution")
    metrics: tuple[str, ...] = _CERTIFIED
    paper: tuple[str, ...] = ()


LAYOUTS: Mapping[str, Layout] = {
    "table2": Layout(
        "Provable accuracy of LipConvnets (the paper's Table 2)", paper=("clean", f"certified/{_RADII[0]}")
    ),
    "table3": Layout("Standard training of ResNets (the paper's Table 3)", metrics=("clean",), paper=("clean",)),
    "table4": Layout(
        "Adversarial training of ResNet-18 (the paper's Table 4)",
        metrics=("clean", "attacked"),
        paper=("clean", "attacked"),
    ),
    "ablations": Layout("One change at a time to our own recipe", ("what", "changed to")),
    "recipes": Layout("One change at a time to our own recipe, 30 epochs", ("what", "changed to")),
    "refinements": Layout("One change at a time to what these found, 30 epochs", ("what", "changed to")),
    "decay": Layout("Weight decay at equal steps", ("convolution", "weight decay")),
    "products": Layout("Training polynomials of SOC at equal steps", ("network", "polynomial-products")),
    "products-timed": Layout(
        "Training polynomials of SOC at equal time", ("network", "polynomial-products"), (*_CERTIFIED, "epochs")
    ),
    "norms": Layout("Norms of SOC layers at equal steps", ("network", "norms"), (*_CERTIFIED, *_COUNTS[1:])),
    "flagship": Layout("Our own recipe at several budgets of time", ("budget", "of"), (*_CERTIFIED, "epochs")),
}


def table_of(
    experiment: str, data: str, rows: Sequence[Row], records: Iterable[Record], times: Record | None = None
) -> Table:
    """The table of an experiment, from the records of finished runs and that of ``reproduce --time``."""
    layout, by_row = LAYOUTS[experiment], _by_row(records)
    columns = [*layout.names, "seeds", *(_HEADINGS[metric] for metric in layout.metrics)]
    columns += [] if times is None else ["seconds an epoch"]
    columns += [f"the paper: {_HEADINGS[metric]}" for metric in layout.paper]
    columns += ["the paper: seconds"] if layout.paper else []
    lines = []
    for row in rows:
        seconds = [] if times is None else [seconds_an_epoch(row.name, times)]
        lines.append((*_ours(layout, row, by_row.get(row.name, [])), *seconds, *_paper_cells(layout, row)))
    found = [record for row in rows for record in by_row.get(row.name, [])]
    notes = _notes(rows, found, times)
    return Table(f"{layout.title}, {data}", tuple(notes), tuple(columns), tuple(lines))


def _ours(layout: Layout, row: Row, records: list[Record]) -> list[Cell]:
    seeds = ", ".join(str(record["seed"]) for record in records)
    finished = [record["results"] for record in records if record["results"]["status"] == "finished"]
    values: dict[str, list[float]] = {"epochs": [results["epochs"] for results in finished]}
    for results in finished:
        shares = {name: results[name] for name in ("clean", "attacked") if name in results}
        shares |= {f"certified/{radius}": share for radius, share in results.get("certified", {}).items()}
        for name, share in shares.items():
            values.setdefault(name, []).append(100 * share)
    for name in _COUNTS[1:]:
        values[name] = [results["jacobian"][name] for results in finished if name in results.get("jacobian", {})]
    cells: list[Cell] = [
        MeanStd(tuple(values[metric]), digits=1 if metric in _COUNTS else 2) if values.get(metric) else None
        for metric in layout.metrics
    ]
    if not records or len(finished) < len(records):
        # A run that diverged is a result of its method: it is not left out of a mean.
        cells = ["diverged" if records else "not run", *(None for _ in cells[1:])]
    return [*row.name.split("/"), seeds or None, *cells]


def _paper_cells(layout: Layout, row: Row) -> list[Cell]:
    if row.paper is None or not layout.paper:
        return [None] * (len(layout.paper) + bool(layout.paper))
    shares = [row.paper.standard] + ([] if row.paper.robust is None else [row.paper.robust])
    return [*(MeanStd((share,)) for share in shares), MeanStd((row.paper.seconds,), digits=1)]


def seconds_an_epoch(name: str, times: Record) -> Cell:
    """Wall seconds, where they were measured on a quiet machine; else seconds of the processor, and so marked."""
    measured = times["results"]["rows"].get(name)
    if measured is None:
        return None
    if times["results"]["quiet"]:
        return MeanStd((measured["seconds_an_epoch"],), digits=1)
    return f"{measured['cpu_seconds_an_epoch']:.0f} (CPU)"


def _notes(rows: Sequence[Row], records: list[Record], times: Record | None) -> Iterable[str]:
    rows_by_name = {row.name: row for row in rows}
    of_the_paper = [record for record in records if rows_by_name[record["results"]["row"]].own is None]
    by_row = [
        reductions(from_dict(TrainConfig, record["config"]), rows_by_name[record["results"]["row"]].recipe)
        for record in of_the_paper
    ]
    if any(by_row):
        # What all rows share is said once; the rest, such as SOC's own weight decay, with "in some rows".
        told = list(dict.fromkeys(words for each in by_row for words in each))
        every = [words for words in told if all(words in each for each in by_row)]
        some = [f"{words} in some rows" for words in told if words not in every]
        yield f"Flags of skewconv train that differ from the paper's recipe (its values): {'; '.join(every + some)}."
    if any(len(record) > 1 for record in _by_row(records).values()):
        yield "Mean ± standard deviation over the seeds, where there are several."
    evaluated = {(r["results"]["images"], r["results"]["split"]) for r in records if "images" in r["results"]}
    for images, split in sorted(evaluated):
        yield f"Evaluated on {images:,} {'test images' if split == 'test' else 'held-out training images'}."
    if any(record["results"].get("minutes_of") == PROCESSOR for record in records):
        yield "Minutes are processor time of one thread."
    for images in sorted({record["results"].get("attacked_images") for record in records} - {None}):
        yield f"PGD-50 with 10 restarts, l-infinity 8/255, on {images:,} fixed images."
    if times is not None and not times["results"]["quiet"]:
        yield "Seconds an epoch marked CPU are processor seconds of one thread: other work ran on the machine."
    if any(row.paper is not None for row in rows):
        yield "The paper's seconds are those of an RTX 2080 Ti."


def _by_row(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record["results"]["row"], []).append(record)
    return found


def markdown(table: Table) -> str:
    lines = [f"### {table.title}", "", _bar(table.columns), _bar(["---"] * len(table.columns))]
    lines += map(_bar, table.rows)
    return "\n".join([*lines, "", *(f"- {note}" for note in table.notes), ""])


def _bar(cells: Iterable[Cell]) -> str:
    return "| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |"
