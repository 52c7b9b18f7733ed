"""The numbers of runs in a few words and side by side; tables as files for papers and spreadsheets."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skewconv.certify import THRESHOLDS, certified_accuracy
from skewconv.certify.certificates import mean_radius
from skewconv.config import to_dict
from skewconv.progress import clock_time
from skewconv.records import atomic_write, radius_name
from skewconv.report.collect import RunFacts

_LATEX = str.maketrans(
    {character: "\\" + character for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)
_BOUNDS = ("lipschitz_upper_bound", "lipschitz_lower_bound", "smallest_singular_value", "largest_singular_value")
_LAYER_COLUMNS = ("name", "type", *_BOUNDS, "norm_estimate", "degree", "truncation_error")


@dataclass(frozen=True)
class Metric:
    """A number of a run: its name, its text, and its value if larger ones are better."""

    name: str
    text: str
    value: float | None = None


def headline(facts: RunFacts) -> list[Metric]:
    """Accuracy, certified accuracy, mean radius, bound, size and time."""
    results: Mapping[str, Any] = (facts.record or {"results": {}})["results"]
    found: list[Metric] = []

    def share(name: str, value: float) -> None:
        found.append(Metric(name, f"{value:.2%}", value))

    if (table := facts.certificates) is not None:
        clean, mean = float((table.prediction == table.label).double().mean()), mean_radius(table.radius)
        found.append(Metric("test images", f"{len(table):,}"))
        share("clean accuracy", clean)
        for radius, certified in zip(THRESHOLDS, certified_accuracy(table.radius, THRESHOLDS), strict=True):
            share(f"certified at {radius_name(radius)}", certified)
        found.append(Metric("mean certified radius", f"{mean:.4f}", mean))
    elif "clean" in results:
        share(f"clean accuracy, {results.get('split', 'test')}", results["clean"])
    if "attacked" in results:
        share("accuracy under PGD", results["attacked"])
    if (bound := results.get("lipschitz_upper_bound")) is not None:
        found.append(Metric("Lipschitz bound", f"{bound:.4f}"))
    found.append(Metric("parameters", f"{sum(each.numel() for each in facts.run.model.parameters()):,}"))
    if "epochs" in results:
        found.append(Metric("epochs", f"{results['epochs']:.4g}"))
    if (seconds := results.get("seconds")) is not None:
        found.append(Metric("training time", clock_time(seconds), -float(seconds)))
    return found


@dataclass(frozen=True)
class Row:
    """One line of a comparison: the text of each run, True for the best, and True if the texts differ."""

    name: str
    cells: tuple[str, ...]
    best: tuple[bool, ...]
    differs: bool


def compare_metrics(runs: Sequence[RunFacts]) -> list[Row]:
    """The headline metrics of all runs, one line each; the best is marked where there is one."""
    return _compared([headline(facts) for facts in runs])


def compare_configs(runs: Sequence[RunFacts]) -> list[Row]:
    """Every setting of all runs, one line each."""
    return _compared([[Metric(name, text) for name, text in settings(facts).items()] for facts in runs])


def _compared(columns: Sequence[Sequence[Metric]]) -> list[Row]:
    rows = []
    named = [{metric.name: metric for metric in column} for column in columns]
    for name in dict.fromkeys(name for column in named for name in column):
        found = [column.get(name, Metric(name, "")) for column in named]
        values = {metric.value for metric in found if metric.value is not None}
        winner = max(values) if len(values) > 1 else math.nan
        texts = tuple(metric.text for metric in found)
        rows.append(Row(name, texts, tuple(metric.value == winner for metric in found), len(set(texts)) > 1))
    return rows


def settings(facts: RunFacts) -> dict[str, str]:
    """The config as names with dots and their values in words."""
    return dict(_flat(to_dict(facts.run.config)))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            radii = ", ".join(map(radius_name, value)) if name == "radii" else None
            yield prefix + name, radii or ("default" if value is None else str(value))


def provenance(facts: RunFacts) -> dict[str, str]:
    """Time, seed, versions, machine, commit and data of a run."""
    record = facts.record or {}
    found = {"finished": str(record.get("time", "not yet")), "seed": str(record.get("seed"))}
    found |= {f"{name} version": str(version) for name, version in record.get("versions", {}).items()}
    found |= {f"machine, {name}".replace("_", " "): str(value) for name, value in record.get("machine", {}).items()}
    if git := record.get("git"):
        found["commit"] = git["commit"] + (", with changes" if git["dirty"] else "")
    found["data"] = f"{facts.run.data.name}, {facts.run.data.fingerprint}"
    return found


def write_tables(runs: Sequence[RunFacts], folder: Path, kind: str) -> list[Path]:
    """The metrics, the settings and the layers of all runs as NAME.csv or NAME.tex (booktabs); the paths."""
    metrics, configs = compare_metrics(runs), compare_configs(runs)
    # One line a run, as tables of papers are.
    lines = [[facts.name, *(row.cells[number] for row in metrics)] for number, facts in enumerate(runs)]
    tables = {
        "figures": [["run", *(row.name for row in metrics)], *lines],
        "settings": [["setting", *(facts.name for facts in runs)], *([row.name, *row.cells] for row in configs)],
    }
    for number, facts in enumerate(runs, 1):
        if facts.audit is not None:
            cells = [[_cell(layer.get(name)) for name in _LAYER_COLUMNS] for layer in facts.audit["layers"]]
            names = [name.replace("_", " ") for name in _LAYER_COLUMNS]
            tables["layers" if len(runs) == 1 else f"layers-{number}"] = [names, *cells]
    for name, rows in tables.items():
        csv.writer(text := io.StringIO(), lineterminator="\n").writerows(rows)
        content = text.getvalue() if kind == "csv" else _latex(rows)
        atomic_write(folder / f"{name}.{kind}", content.encode())
    return [folder / f"{name}.{kind}" for name in tables]


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)


def _latex(rows: Sequence[Sequence[str]]) -> str:
    head, *body = [" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in rows]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]) + "\n"
