"""Training: data, recipes, the loop, checkpoints, and the runs they leave on disk."""

import importlib
from typing import TYPE_CHECKING, Any

from skewconv.train.presets import PAPER, PRESETS, PaperRow, preset, recipe

if TYPE_CHECKING:
    from skewconv.train.fitting import Fitted, fit
    from skewconv.train.run import Run, load, open_run

__all__ = ["PAPER", "PRESETS", "Fitted", "PaperRow", "Run", "fit", "load", "open_run", "preset", "recipe"]

_PLACES = {"Fitted": "fitting", "Run": "run", "fit": "fitting", "load": "run", "open_run": "run"}


def __getattr__(name: str) -> Any:
    # Runs need torch, which takes seconds to import; recipes and the flags of the command line do not.
    if name in _PLACES:
        return getattr(importlib.import_module(f"skewconv.train.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'skewconv.train' has no attribute {name!r}")
