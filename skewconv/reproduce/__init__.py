"""The paper's tables, run again: rows, the scale they are run at, their runs and records, and the tables of these."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skewconv.reproduce.rows import EXPERIMENTS, Row
    from skewconv.reproduce.study import Job, Study
    from skewconv.reproduce.table import table_of

__all__ = ["EXPERIMENTS", "Job", "Row", "Study", "table_of"]

# The flags of the command are read without torch, which the studies need.
_PLACES = {"EXPERIMENTS": "rows", "Job": "study", "Row": "rows", "Study": "study", "table_of": "table"}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"skewconv.reproduce.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'skewconv.reproduce' has no attribute {name!r}")
