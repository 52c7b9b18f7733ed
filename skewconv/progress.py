"""Progress for a person, on standard error: a line redrawn in a terminal, plain lines elsewhere, or nothing.

A function that takes long takes a `Tick`, and calls it; it knows nothing of terminals. A command makes the line:

    with Progress("certifying", "images", quiet=self.quiet) as tick:
        certify_dataset(..., progress=tick)
"""

import sys
import time
from collections.abc import Callable
from typing import TypeAlias

from skewconv.extras import optional

#: called with (done, total)
Tick: TypeAlias = Callable[[int, int], None]
_SECONDS_BETWEEN_LINES = 15.0


class Display:
    """The progress of a training run; this one shows nothing: for --quiet, and for all processes but the first."""

    def show(self, step: int, done: float, text: str) -> None:
        """A step was made: its number, the share of the run that is done, and the metrics in words."""

    def work(self, what: str, done: int = 0, total: int = 0, unit: str = "images") -> None:
        """Work other than a step: `done` of `total`, if that is known."""

    def note(self, text: str) -> None:
        """A line of its own that stays."""

    def restart(self, what: str) -> None:
        """Other work begins."""

    def close(self) -> None:
        """The end."""


class Lines(Display):
    """Plain lines, a few each minute: for files and pipes."""

    def __init__(self) -> None:
        self._next = 0.0

    def show(self, step: int, done: float, text: str) -> None:
        if self._due() or done >= 1:
            self.note(f"{done:4.0%}  step {step}  {text}")

    def work(self, what: str, done: int = 0, total: int = 0, unit: str = "images") -> None:
        if self._due():
            self.note(f"{what}: {done:,} of {total:,} {unit}" if total else what)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _due(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _SECONDS_BETWEEN_LINES
        return True


class Live(Display):
    """A bar and metrics, redrawn in place; it `stays` at the end, or shows the time left and goes."""

    def __init__(self, *, stays: bool = True) -> None:
        rich = optional("rich.progress", "rich")
        texts = [rich.TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[text]")]
        clocks = [rich.TimeElapsedColumn(), *([] if stays else [rich.TimeRemainingColumn()])]
        self._bar = rich.Progress(
            *(texts[0], rich.BarColumn(24), rich.TaskProgressColumn(), texts[1], *clocks),
            console=optional("rich.console", "rich").Console(stderr=True, highlight=False, markup=False),
            transient=not stays,
            refresh_per_second=5,
        )
        self._bar.start()
        self._task = self._bar.add_task("starting", total=None, text="")

    def show(self, step: int, done: float, text: str) -> None:
        self._bar.update(self._task, description="", completed=done, total=1.0, text=text)

    def work(self, what: str, done: int = 0, total: int = 0, unit: str = "images") -> None:
        text = f"{done:,}/{total:,} {unit}".rstrip() if total else ""
        self._bar.update(self._task, description=what, completed=done, total=total or None, text=text)

    def note(self, text: str) -> None:
        self._bar.console.print(text)

    def restart(self, what: str) -> None:
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=None, text="")

    def close(self) -> None:
        self._bar.stop()


def display_for(quiet: bool = False) -> Display:
    if quiet:
        return Display()
    return Live() if sys.stderr.isatty() else Lines()


class Progress:
    """Progress of one piece of work after the other; none outside a terminal."""

    def __init__(self, what: str, unit: str = "", *, quiet: bool = False) -> None:
        self._quiet, self._display = quiet, Display()
        self.start(what, unit)

    def start(self, what: str, unit: str = "") -> "Progress":
        self._what, self._unit = what, unit
        self._display.restart(what)
        return self

    def __call__(self, done: int, total: int) -> None:
        self._display.work(self._what, done, total, self._unit)

    def __enter__(self) -> "Progress":
        if not self._quiet and sys.stderr.isatty():
            self._display = Live(stays=False)
            self._display.restart(self._what)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._display.close()
        self._display = Display()


def clock_time(seconds: float) -> str:
    """Minutes and seconds.

    >>> clock_time(75), clock_time(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
