"""Figures and tables as files, for papers and spreadsheets."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from skewconv.extras import optional
from skewconv.records import atomic_write
from skewconv.report.collect import RunFacts
from skewconv.report.figures import FIGURES
from skewconv.report.summary import compare_configs, compare_figures
from skewconv.report.theme import PAPER, settings

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
}


def write_figures(runs: Sequence[RunFacts], folder: Path, kind: str) -> list[Path]:
    """Each figure as NAME.png (300 dots an inch) or NAME.svg, on white; the paths."""
    written = []
    with optional("matplotlib", "matplotlib", "report").rc_context(settings(PAPER)):
        for name, draw in FIGURES.items():
            if (figure := draw(runs, PAPER)) is not None:
                file = io.BytesIO()
                figure.savefig(file, format=kind, dpi=300, facecolor="white")
                atomic_write(path := folder / f"{name}.{kind}", file.getvalue())
                written.append(path)
    return written


def write_tables(runs: Sequence[RunFacts], folder: Path, kind: str) -> list[Path]:
    """The figures, the settings and the layers of all runs as NAME.csv or NAME.tex (booktabs); the paths."""
    tables = {"figures": _figures(runs), "settings": _settings(runs)}
    for number, facts in enumerate(runs, 1):
        if facts.audit is not None:
            tables["layers" if len(runs) == 1 else f"layers-{number}"] = _layers(facts)
    written = []
    for name, rows in tables.items():
        text = _csv(rows) if kind == "csv" else _latex(rows)
        atomic_write(path := folder / f"{name}.{kind}", text.encode())
        written.append(path)
    return written


def _figures(runs: Sequence[RunFacts]) -> list[list[str]]:
    """One line a run, as tables of papers are."""
    rows = compare_figures(runs)
    lines = [[facts.name, *(row.cells[number] for row in rows)] for number, facts in enumerate(runs)]
    return [["run", *(row.name for row in rows)], *lines]


def _settings(runs: Sequence[RunFacts]) -> list[list[str]]:
    return [["setting", *(facts.name for facts in runs)], *([row.name, *row.cells] for row in compare_configs(runs))]


def _layers(facts: RunFacts) -> list[list[str]]:
    assert facts.audit is not None
    names = ("name", "type", "lipschitz_upper_bound", "lipschitz_lower_bound")
    extra = ("smallest_singular_value", "largest_singular_value", "norm_estimate", "degree", "truncation_error")
    rows = [[_cell(layer.get(name)) for name in (*names, *extra)] for layer in facts.audit["layers"]]
    return [[name.replace("_", " ") for name in (*names, *extra)], *rows]


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
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
    columns = "l" + "r" * (len(rows[0]) - 1)
    lines = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
