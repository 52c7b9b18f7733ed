"""What a person sees while a network trains: a live line in a terminal, plain lines elsewhere; all on stderr."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from skewconv.train.data.errors import optional

_SECONDS_BETWEEN_LINES = 15.0


@dataclass(frozen=True)
class Status:
    """A moment of a run. Accuracies are shares; those of the images `judged` come from the last evaluation."""

    step: int
    epoch: float
    epochs: float | None
    done: float
    loss: float
    accuracy: float
    images_per_second: float
    seconds_left: float | None
    judged: str = "test"
    clean: float | None = None
    certified: float | None = None

    def figures(self) -> str:
        """The figures in one line."""
        parts = [f"loss {self.loss:.3f}", f"train {self.accuracy:.1%}"]
        if self.clean is not None:
            parts.append(f"{self.judged} {self.clean:.1%}")
        if self.certified is not None:
            parts.append(f"certified {self.certified:.1%}")
        parts.append(f"{self.images_per_second:,.0f} images/s")
        if self.seconds_left is not None:
            parts.append(f"{clock_time(self.seconds_left)} left")
        return "  ".join(parts)

    def epoch_text(self) -> str:
        """Epoch so far, of how many if that is known."""
        of = "" if self.epochs is None or not math.isfinite(self.epochs) else f"/{self.epochs:.4g}"
        return f"epoch {self.epoch:.1f}{of}"


class Display(Protocol):
    """Shows statuses and notes."""

    def show(self, status: Status) -> None:
        """After a step."""

    def note(self, text: str) -> None:
        """A line of its own that stays."""

    def close(self) -> None:
        """The last."""


class Silent:
    """Shows nothing: for all processes but the first, and for --quiet."""

    def show(self, status: Status) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines:
    """Plain lines, a few each minute: for files and pipes."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock, self._next = stream or sys.stderr, clock, 0.0

    def show(self, status: Status) -> None:
        """A line, if the last is old enough."""
        if self._clock() >= self._next or status.done >= 1:
            self._next = self._clock() + _SECONDS_BETWEEN_LINES
            self.note(f"{status.done:4.0%}  {status.epoch_text()}  step {status.step}  {status.figures()}")

    def note(self, text: str) -> None:
        """A line."""
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to do."""


class Live:
    """A bar with the figures behind it, redrawn in place by rich."""

    def __init__(self) -> None:
        columns = optional("rich.progress", "rich")
        console = optional("rich.console", "rich").Console(stderr=True)
        self._progress: Any = columns.Progress(
            columns.BarColumn(bar_width=20),
            columns.TaskProgressColumn(),
            columns.TextColumn("{task.description}"),
            columns.TextColumn("{task.fields[figures]}", style="cyan"),
            console=console,
        )
        self._task = self._progress.add_task("starting", total=1.0, figures="")
        self._progress.start()

    def show(self, status: Status) -> None:
        """Redraw."""
        self._progress.update(
            self._task, completed=status.done, description=status.epoch_text(), figures=status.figures()
        )

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()


def display_for(quiet: bool = False) -> Display:
    """Live in a terminal, lines elsewhere, nothing if quiet."""
    if quiet:
        return Silent()
    return Live() if sys.stderr.isatty() else Lines()


def clock_time(seconds: float) -> str:
    """Minutes and seconds.

    >>> clock_time(75), clock_time(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
