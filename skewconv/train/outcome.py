"""How a run ends: finished, stopped, diverged, or left alone by another process."""

import signal
from dataclasses import dataclass
from typing import Any

from skewconv.errors import SkewconvError
from skewconv.train.checkpoint import Position
from skewconv.train.evaluate import Figures


class DivergedError(SkewconvError):
    """The loss or the weights are no longer numbers."""


class LostProcessError(SkewconvError):
    """Another of several processes is gone, and this one cannot go on alone."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its figures, or the signal that stopped it."""

    position: Position
    figures: Figures | None = None
    stopped_by: signal.Signals | None = None
    record: dict[str, Any] | None = None
