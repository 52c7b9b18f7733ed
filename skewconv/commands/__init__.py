"""The commands, one module each: a frozen dataclass of typed flags whose `run` does the work and returns a status.

A module here imports nothing heavy at its top: flags are read, and mistakes in them are answered, without torch. This
file has what commands share: how they print, and when they overwrite.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skewconv.errors import ArgumentError
from skewconv.extras import optional
from skewconv.records import RecordError, as_json, read_record


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print the JSON document of a command with --json."""
    print(as_json(document))


def print_table(title: str, rows: Sequence[Sequence[str]], heads: Sequence[str] = (), numbers: int = 0) -> None:
    """Print names and values for a person, or columns with these heads, the last `numbers` of them numbers."""
    table = optional("rich.table", "rich").Table(title=title or None, show_header=bool(heads), title_justify="left")
    for place, head in enumerate(heads or ("", "")):
        number = place >= len(heads or ("", "")) - numbers
        # On a narrow screen the widest column is folded first, so that values stay whole beside long names.
        table.add_column(head, overflow="fold", no_wrap=number, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    optional("rich.console", "rich").Console(highlight=False, markup=False).print(table)


def metric_rows(title: str, results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Number of images (by their title), clean and certified accuracy, Lipschitz bound: the results of a record."""
    rows = [(title, f"{results['images']:,}"), ("clean accuracy", f"{results['clean']:.2%}")]
    for radius, share in results.get("certified", {}).items():
        float32 = results.get("certified_float32", {}).get(radius)
        beside = "" if float32 is None else f"  float32 {float32:.2%}"
        rows.append((f"certified accuracy at l2 radius {radius}", f"{share:.2%}{beside}"))
    if "lipschitz_upper_bound" in results:
        rows.append(("mean certified radius", f"{results['mean_radius']:.4f}"))
        rows.append(("proven Lipschitz bound, pixels to logits", f"{results['lipschitz_upper_bound']:.6f}"))
    if "attacked" in results:
        rows.append((f"accuracy under PGD, of {results['attacked_images']:,} images", f"{results['attacked']:.2%}"))
    return rows


def is_the_program() -> bool:
    """True if this process is the command line itself, not a program that calls it."""
    program = Path(sys.argv[0])
    return program.stem == "skewconv" or program.parts[-2:] == ("skewconv", "__main__.py")


def refuse_overwrite(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to replace a record whose results have other values of these settings."""
    if not path.exists():
        return
    try:
        before = read_record(path)["results"]
    except RecordError:
        raise ArgumentError(f"{path} is no record of skewconv: move it away, or give --overwrite") from None
    changed = {name: value for name, value in settings.items() if before.get(name) != value}
    if changed:
        changes = [f"{name} was {before.get(name)} and is now {value}" for name, value in changed.items()]
        raise ArgumentError(
            f"{path} holds the results of other settings ({'; '.join(changes)}): give --overwrite, or another --out"
        )
