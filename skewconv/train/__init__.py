"""Training: data, recipes, the loop, checkpoints, and runs on disk."""

import importlib
from typing import TYPE_CHECKING, Any

from skewconv.train.presets import PAPER, PRESETS, PaperRow, preset, recipe

if TYPE_CHECKING:
    from skewconv.train.run import Run, load, open_run
    from skewconv.train.session import Fitted, fit
    from skewconv.train.step import hkr_loss

__all__ = ["PAPER", "PRESETS", "Fitted", "PaperRow", "Run", "fit", "hkr_loss", "load", "open_run", "preset", "recipe"]

_MODULES = {"Fitted": "session", "Run": "run", "fit": "session", "hkr_loss": "step", "load": "run", "open_run": "run"}


def __getattr__(name: str) -> Any:
    # Runs need torch, which takes seconds to import; recipes and the flags of the command line do not.
    if name in _MODULES:
        return getattr(importlib.import_module(f"skewconv.train.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'skewconv.train' has no attribute {name!r}")
