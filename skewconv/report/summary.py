"""The numbers of runs in a few words and side by side; figures and tables as files for papers and spreadsheets."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skewconv.certify import THRESHOLDS, certified_accuracy
from skewconv.certify.certificates import mean_radius
from skewconv.choices import radius_name
from skewconv.config import to_dict
from skewconv.extras import optional
from skewconv.progress import clock_time
from skewconv.records import atomic_write
from skewconv.report.collect import RunFacts
from skewconv.report.figures import FIGURES, PAPER, drawing_settings

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
}


@dataclass(frozen=True)
class Metric:
    """A number of a run: its name, its text, and its value if larger or smaller ones are better."""

    name: str
    text: str
    value: float | None = None
    more_is_better: bool = True


def headline(facts: RunFacts) -> list[Metric]:
    """Accuracy, certified accuracy, mean radius, bound, size and time."""
    results: Mapping[str, Any] = {} if facts.record is None else facts.record["results"]
    found: list[Metric] = []
    if (table := facts.certificates) is not None:
        clean, mean = float((table.prediction == table.label).double().mean()), mean_radius(table.radius)
        found += [Metric("test images", f"{len(table):,}"), _share("clean accuracy", clean)]
        shares = zip(THRESHOLDS, certified_accuracy(table.radius, THRESHOLDS), strict=True)
        found += [_share(f"certified at {radius_name(radius)}", share) for radius, share in shares]
        found.append(Metric("mean radius", f"{mean:.4f}", mean))
    elif "clean" in results:
        found.append(_share(f"clean accuracy, {results.get('split', 'test')}", results["clean"]))
    if "attacked" in results:
        found.append(_share("accuracy under PGD", results["attacked"]))
    if (bound := results.get("lipschitz_upper_bound")) is not None:
        found.append(Metric("Lipschitz bound", f"{bound:.4f}"))
    found.append(Metric("parameters", f"{sum(each.numel() for each in facts.run.model.parameters()):,}"))
    if "epochs" in results:
        found.append(Metric("epochs", f"{results['epochs']:.4g}"))
    if (seconds := results.get("seconds")) is not None:
        found.append(Metric("training time", clock_time(seconds), float(seconds), more_is_better=False))
    return found


def _share(name: str, share: float) -> Metric:
    return Metric(name, f"{share:.2%}", share)


@dataclass(frozen=True)
class Row:
    """One line of a comparison: the text of each run, True for the best, and True if the texts differ."""

    name: str
    cells: tuple[str, ...]
    best: tuple[bool, ...]
    differs: bool


def compare_metrics(runs: Sequence[RunFacts]) -> list[Row]:
    """The headline metrics of all runs, one line each; the best is marked where there is one."""
    return _compared([{metric.name: metric for metric in headline(facts)} for facts in runs])


def compare_configs(runs: Sequence[RunFacts]) -> list[Row]:
    """Every setting of all runs, one line each."""
    return _compared([{name: Metric(name, text) for name, text in settings(facts).items()} for facts in runs])


def _compared(columns: Sequence[Mapping[str, Metric]]) -> list[Row]:
    rows = []
    for name in dict.fromkeys(name for column in columns for name in column):
        found = [column.get(name, Metric(name, "")) for column in columns]
        values = {metric.value for metric in found if metric.value is not None}
        choice = max if all(metric.more_is_better for metric in found) else min
        winner = choice(values) if len(values) > 1 else math.nan
        texts = tuple(metric.text for metric in found)
        rows.append(Row(name, texts, tuple(metric.value == winner for metric in found), len(set(texts)) > 1))
    return rows


def settings(facts: RunFacts) -> dict[str, str]:
    """The config as names with dots and their values in words."""
    return dict(_flat(to_dict(facts.run.config)))


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        elif name == "radii" and isinstance(value, (list, tuple)):
            found.append((prefix + name, ", ".join(radius_name(float(radius)) for radius in value)))
        else:
            found.append((prefix + name, "default" if value is None else str(value)))
    return found


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


def write_figures(runs: Sequence[RunFacts], folder: Path, kind: str) -> list[Path]:
    """Each figure as NAME.png (300 dots an inch) or NAME.svg, on white; the paths."""
    written = []
    with optional("matplotlib", "matplotlib", "report").rc_context(drawing_settings(PAPER)):
        for name, draw in FIGURES.items():
            if (figure := draw(runs, PAPER)) is not None:
                file = io.BytesIO()
                figure.savefig(file, format=kind, dpi=300, facecolor="white")
                atomic_write(path := folder / f"{name}.{kind}", file.getvalue())
                written.append(path)
    return written


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
            tables["layers" if len(runs) == 1 else f"layers-{number}"] = _layers(facts)
    written = []
    for name, rows in tables.items():
        text = _csv(rows) if kind == "csv" else _latex(rows)
        atomic_write(path := folder / f"{name}.{kind}", text.encode())
        written.append(path)
    return written


def _layers(facts: RunFacts) -> list[list[str]]:
    assert facts.audit is not None
    names = ("name", "type", "lipschitz_upper_bound", "lipschitz_lower_bound")
    extra = ("smallest_singular_value", "largest_singular_value", "norm_estimate", "degree", "truncation_error")
    rows = [[_cell(layer.get(name)) for name in (*names, *extra)] for layer in facts.audit["layers"]]
    return [[name.replace("_", " ") for name in (*names, *extra)], *rows]


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)


def _csv(rows: Sequence[Sequence[str]]) -> str:
    csv.writer(text := io.StringIO(), lineterminator="\n").writerows(rows)
    return text.getvalue()


def _latex(rows: Sequence[Sequence[str]]) -> str:
    r"""A table with the rules of booktabs; needs \usepackage{booktabs}.

    >>> print(_latex([["run", "clean"], ["a_b", "97.77%"]]))
    \begin{tabular}{lr}
    \toprule
    run & clean \\
    \midrule
    a\_b & 97.77\% \\
    \bottomrule
    \end{tabular}
    <BLANKLINE>
    """
    head, *body = [" & ".join(map(_escaped, row)) + r" \\" for row in rows]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
