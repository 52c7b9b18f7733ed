"""What a person sees while a network trains: a live line in a terminal, plain lines elsewhere; all on stderr."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO

from skewconv.progress import BAR, LiveLine, Piece, clock_time

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

    def pieces(self) -> list[Piece]:
        """The figures, each with its rank: what matters least is left out first where the line is short."""
        found = [Piece(f"{self.done:4.0%}", 0), Piece(self.epoch_text(), 2)]
        if self.seconds_left is not None:
            found.append(Piece(f"{clock_time(self.seconds_left)} left", 1))
        found += [Piece(f"loss {self.loss:.3f}", 6), Piece(f"train {self.accuracy:.1%}", 7)]
        if self.clean is not None:
            found.append(Piece(f"{self.judged} {self.clean:.1%}", 5))
        if self.certified is not None:
            # On the way it is margin over bound in the precision of training; the last evaluation proves it.
            found.append(Piece(f"certified (estimate) {self.certified:.1%}", 4))
        return [*found, Piece(f"{self.images_per_second:,.0f} images/s", 8)]

    def epoch_text(self) -> str:
        """Epoch so far, of how many if that is known."""
        of = "" if self.epochs is None or not math.isfinite(self.epochs) else f"/{self.epochs:.4g}"
        return f"epoch {self.epoch:.1f}{of}"


class Display(Protocol):
    """Shows statuses and notes."""

    def show(self, status: Status) -> None:
        """After a step."""

    def work(self, what: str, done: int = 0, total: int = 0) -> None:
        """Something other than a step is being done: so many images of so many, if that is known."""

    def note(self, text: str) -> None:
        """A line of its own that stays."""

    def close(self) -> None:
        """The last."""


class Silent:
    """Shows nothing: for all processes but the first, and for --quiet."""

    def show(self, status: Status) -> None:
        """Nothing."""

    def work(self, what: str, done: int = 0, total: int = 0) -> None:
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
        if self._due() or status.done >= 1:
            texts = [piece.text for piece in status.pieces()]
            self.note("  ".join([*texts[:2], f"step {status.step}", *texts[2:]]))

    def work(self, what: str, done: int = 0, total: int = 0) -> None:
        """A line, if the last is old enough."""
        if self._due():
            self.note(f"{what}: {done:,} of {total:,} images" if total else what)

    def note(self, text: str) -> None:
        """A line."""
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to do."""

    def _due(self) -> bool:
        if self._clock() < self._next:
            return False
        self._next = self._clock() + _SECONDS_BETWEEN_LINES
        return True


class Live:
    """A bar with the figures behind it, redrawn in place."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = [Piece("starting", 0)]
        self._share: float | None = None
        self._what, self._began = "starting", time.monotonic()
        self._line = LiveLine(self._draw, stays=True)

    def show(self, status: Status) -> None:
        """Redraw."""
        self._what = ""
        self._pieces, self._share = [Piece(BAR, 3), *status.pieces()], status.done

    def work(self, what: str, done: int = 0, total: int = 0) -> None:
        """Redraw."""
        if what != self._what:
            self._what, self._began = what, time.monotonic()
        self._share = done / total if total else None
        self._pieces = [Piece(what, 0)]
        if total:
            counted = Piece(f"{done:,}/{total:,} images", 2)
            self._pieces = [Piece(BAR, 3), Piece(f"{done / total:4.0%}", 1), Piece(what, 0), counted]

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._line.console.print(text)

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._line.close()

    def _draw(self) -> tuple[list[Piece], float | None]:
        # Where nothing is counted, a clock that goes on is the sign of life.
        clock = [Piece(clock_time(time.monotonic() - self._began), 4)] if self._what else []
        return [*self._pieces, *clock], self._share


def display_for(quiet: bool = False) -> Display:
    """Live in a terminal, lines elsewhere, nothing if quiet."""
    if quiet:
        return Silent()
    return Live() if sys.stderr.isatty() else Lines()
