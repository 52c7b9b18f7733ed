"""The commands, one module each: a frozen dataclass of typed flags whose `run` does the work and returns a status.

A module here imports nothing heavy at its top: flags are read, and mistakes in them are answered, without torch.
"""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skewconv.extras import optional
from skewconv.records import as_json


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """The one document that a command prints with --json."""
    print(as_json(document))


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Names and figures, for a person."""
    table = optional("rich.table", "rich").Table(title=title, show_header=False, title_justify="left")
    # On a narrow screen the wider of the two is folded first, so that figures stay whole beside long names.
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, figure in rows:
        table.add_row(name, figure)
    optional("rich.console", "rich").Console(highlight=False, markup=False).print(table)


def is_the_program() -> bool:
    """Whether this process is the command line itself, and not a program that calls it."""
    program = Path(sys.argv[0])
    return program.stem == "skewconv" or program.parts[-2:] == ("skewconv", "__main__.py")


def program() -> str:
    """How to call this command line again from the same folder: as it was called, or by its name if that finds it."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m skewconv"
    found = shutil.which("skewconv")
    if called.stem != "skewconv" or (found is not None and Path(found).resolve() == called.resolve()):
        return "skewconv"
    return shlex.quote(str(called))
