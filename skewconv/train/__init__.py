"""Training: data, recipes, the loop, checkpoints, and the runs they leave on disk."""

from typing import TYPE_CHECKING, Any

from skewconv.train.presets import PAPER, PRESETS, PaperRow, preset, recipe

if TYPE_CHECKING:
    from skewconv.train.run import Run, load, open_run

__all__ = ["PAPER", "PRESETS", "PaperRow", "Run", "load", "open_run", "preset", "recipe"]


def __getattr__(name: str) -> Any:
    # Runs need torch, which takes seconds to import; recipes and the flags of the command line do not.
    if name in ("Run", "load", "open_run"):
        from skewconv.train import run

        return getattr(run, name)
    raise AttributeError(f"module 'skewconv.train' has no attribute {name!r}")
