"""A table as Markdown, as CSV, and as LaTeX with booktabs."""

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path

from skewconv.records import atomic_write
from skewconv.reproduce.table import Cell, Table
from skewconv.train.seeds import MeanStd

_LATEX_SPECIAL = {"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "±": r"$\pm$", "$": r"\$"}


def markdown(table: Table) -> str:
    """For a page.

    >>> print(markdown(Table("T", ("Note.",), ("model", "clean"), (("a", MeanStd((45.0, 46.0))), ("b", None)))))
    ### T
    <BLANKLINE>
    | model | clean |
    | --- | --- |
    | a | 45.50 ± 0.71 |
    | b |  |
    <BLANKLINE>
    - Note.
    <BLANKLINE>
    """
    lines = [f"### {table.title}", "", _bar(table.columns), _bar(["---"] * len(table.columns))]
    lines += [_bar([_text(cell) for cell in row]) for row in table.rows]
    return "\n".join([*lines, "", *(f"- {note}" for note in table.notes), ""])


def as_csv(table: Table) -> str:
    """For a program: the mean in the column's name, and the standard deviation over the seeds in one beside it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    wide = [any(_spread(row[index]) is not None for row in table.rows) for index in range(len(table.columns))]
    writer.writerow(
        words
        for name, has_spread in zip(table.columns, wide, strict=True)
        for words in ([name, f"{name}: standard deviation"] if has_spread else [name])
    )
    for row in table.rows:
        cells: list[object] = []
        for cell, has_spread in zip(row, wide, strict=True):
            cells.append(round(cell.mean, 6) if isinstance(cell, MeanStd) else _text(cell))
            if has_spread:
                spread = _spread(cell)
                cells.append("" if spread is None else round(spread, 6))
        writer.writerow(cells)
    return text.getvalue()


def latex(table: Table) -> str:
    """For a paper: a tabular with booktabs, its notes as comments above it."""
    lines = [f"% {table.title}", *(f"% {note}" for note in table.notes)]
    lines += [r"\begin{tabular}{ll" + "r" * (len(table.columns) - 2) + "}", r"\toprule"]
    lines += [_latex_row(table.columns), r"\midrule"]
    lines += [_latex_row([_text(cell) for cell in row]) for row in table.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


#: ending -> writer
FORMATS: Mapping[str, Callable[[Table], str]] = {"md": markdown, "csv": as_csv, "tex": latex}


def write_table(table: Table, folder: Path, name: str) -> list[Path]:
    """The table in every format, each file whole or not at all."""
    paths = []
    for ending, render in FORMATS.items():
        paths.append(folder / f"{name}.{ending}")
        atomic_write(paths[-1], render(table).encode())
    return paths


def _spread(cell: Cell) -> float | None:
    return cell.std if isinstance(cell, MeanStd) else None


def _text(cell: Cell) -> str:
    return "" if cell is None else str(cell)


def _bar(cells: "list[str] | tuple[str, ...]") -> str:
    return "| " + " | ".join(cells) + " |"


def _latex_row(cells: "list[str] | tuple[str, ...]") -> str:
    return " & ".join("".join(_LATEX_SPECIAL.get(letter, letter) for letter in cell) for cell in cells) + r" \\"
