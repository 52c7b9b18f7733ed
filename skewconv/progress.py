"""Progress of a command: one line on standard error, redrawn in place.

A function that takes long takes a `Tick`, and calls it; it knows nothing of terminals. A command makes the line:

    with Progress("certifying", "images", quiet=self.quiet) as tick:
        certify_dataset(..., progress=tick)
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from skewconv.extras import optional

#: called with (done, total)
Tick: TypeAlias = Callable[[int, int], None]

_SMALLEST_BAR, _LARGEST_BAR = 8, 24
_GAP = "  "


@dataclass(frozen=True)
class Piece:
    """A part of the line; where the line is too long, pieces of the highest rank are left out first."""

    text: str
    rank: int


#: takes the place of the bar in a list of pieces
BAR = "\0"


def fitted(pieces: Sequence[Piece], width: int) -> list[str]:
    """The texts of the pieces for which there is room, in their order; the bar takes at least 8 columns.

    >>> fitted([Piece("45%", 0), Piece("1:05 left", 1), Piece("loss 0.1", 2)], 20)
    ['45%', '1:05 left']
    """
    kept = list(pieces)
    while len(kept) > 1 and _length(kept) > width:
        kept.remove(max(kept, key=lambda piece: piece.rank))
    return [piece.text for piece in kept]


def _length(pieces: Sequence[Piece]) -> int:
    texts = (_SMALLEST_BAR if piece.text == BAR else len(piece.text) for piece in pieces)
    return sum(texts) + len(_GAP) * (len(pieces) - 1)


class LiveLine:
    """The line itself, drawn by rich; `pieces` is called at each refresh, so that clocks go on.

    Args:
        pieces: gives the pieces, and the share that is done (None while it is not known).
        stays: leave the last state of the line on the screen.
        still: draw it once only.
    """

    def __init__(
        self, pieces: Callable[[], tuple[Sequence[Piece], float | None]], *, stays: bool = False, still: bool = False
    ) -> None:
        self._pieces = pieces
        self._text = optional("rich.text", "rich").Text
        self.console: Any = optional("rich.console", "rich").Console(stderr=True, highlight=False, markup=False)
        self._live: Any = optional("rich.live", "rich").Live(
            self, console=self.console, transient=not stays, refresh_per_second=5, auto_refresh=not still
        )
        self._live.start(refresh=True)

    def __rich_console__(self, console: Any, options: Any) -> Any:
        pieces, share = self._pieces()
        texts = fitted(pieces, options.max_width)
        line = self._text(no_wrap=True, overflow="crop")
        room = options.max_width - sum(len(text) + len(_GAP) for text in texts if text != BAR)
        for index, text in enumerate(texts):
            line.append(_GAP if index else "")
            if text == BAR:
                columns = max(min(room, _LARGEST_BAR), _SMALLEST_BAR)
                full = round(columns * (share or 0.0))
                line.append("━" * full, style="green")
                line.append("━" * (columns - full), style="bright_black")
            else:
                line.append(text)
        yield line

    def close(self) -> None:
        """Stop drawing."""
        self._live.stop()


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
        self._line: LiveLine | None = None
        self.start(what, unit)

    def start(self, what: str, unit: str = "") -> "Progress":
        """Another piece of work begins."""
        self._what, self._unit, self._began = what, unit, time.monotonic()
        self._done, self._total = 0, 0
        return self

    def __call__(self, done: int, total: int) -> None:
        self._done, self._total = done, total

    def __enter__(self) -> "Progress":
        if not self._quiet and sys.stderr.isatty():
            self._line = LiveLine(self._pieces, still=self._still)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the line."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _pieces(self) -> tuple[Sequence[Piece], float | None]:
        if self._still:
            return [Piece(self._what, 0)], None
        seconds = time.monotonic() - self._began
        if not self._total:
            return [Piece(self._what, 0), Piece(clock_time(seconds), 1)], None
        share = min(self._done / self._total, 1.0)
        left = f"{clock_time(seconds * (1 - share) / share)} left" if share else clock_time(seconds)
        count = f"{self._done:,}/{self._total:,} {self._unit}".rstrip()
        return [Piece(self._what, 0), Piece(BAR, 4), Piece(f"{share:4.0%}", 1), Piece(count, 3), Piece(left, 2)], share


def clock_time(seconds: float) -> str:
    """Minutes and seconds.

    >>> clock_time(75), clock_time(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
