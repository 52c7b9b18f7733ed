"""Training: data, recipes, the loop, checkpoints, and the runs they leave on disk."""

from skewconv.train.presets import PAPER, PRESETS, PaperRow, preset, recipe
from skewconv.train.run import Run, load, open_run

__all__ = ["PAPER", "PRESETS", "PaperRow", "Run", "load", "open_run", "preset", "recipe"]
