"""Progress of a command: one line on standard error, redrawn in place.

A function that takes long takes a `Tick`, and calls it; it knows nothing of terminals. A command makes the line:

    with Progress("certifying", "images", quiet=self.quiet) as tick:
        certify_dataset(..., progress=tick)
"""

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from skewconv.extras import optional

#: called with (done, total)
Tick: TypeAlias = Callable[[int, int], None]


def live_bar(*, stays: bool = False, still: bool = False, remaining: bool = True) -> Any:
    """A started rich.progress.Progress on standard error; its tasks have a field `text`."""
    rich = optional("rich.progress", "rich")
    text = rich.TextColumn("{task.description}", markup=False), rich.TextColumn("{task.fields[text]}", markup=False)
    clocks = [] if still else [rich.TimeElapsedColumn(), *([rich.TimeRemainingColumn()] if remaining else [])]
    bar = rich.Progress(
        *(text[0], rich.BarColumn(24), rich.TaskProgressColumn(), text[1], *clocks),
        console=optional("rich.console", "rich").Console(stderr=True, highlight=False, markup=False),
        transient=not stays,
        auto_refresh=not still,
        refresh_per_second=5,
    )
    bar.start()
    return bar


class Progress:
    """A line for one piece of work after the other; silent where standard error is no terminal, and if quiet.

    Args:
        what: the work, such as "certifying".
        unit: of the count, such as "images".
        quiet: show nothing.
        still: draw the line once, without a clock: for work that must not be disturbed.
    """

    def __init__(self, what: str, unit: str = "", *, quiet: bool = False, still: bool = False) -> None:
        self._quiet, self._still = quiet, still
        self._bar: Any = None
        self._task: Any = None
        self.start(what, unit)

    def start(self, what: str, unit: str = "") -> "Progress":
        """Another piece of work begins."""
        self._what, self._unit = what, unit
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=None, text="")
        return self

    def __call__(self, done: int, total: int) -> None:
        if self._bar is not None:
            text = f"{done:,}/{total:,} {self._unit}".rstrip()
            self._bar.update(self._task, completed=done, total=total, text=text)

    def __enter__(self) -> "Progress":
        if not self._quiet and sys.stderr.isatty():
            self._bar = live_bar(still=self._still)
            self.start(self._what, self._unit)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def clock_time(seconds: float) -> str:
    """Minutes and seconds.

    >>> clock_time(75), clock_time(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
