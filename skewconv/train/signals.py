"""Ctrl-C and SIGTERM as a request that the loop answers between two steps."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_ASKED = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While entered, the first signal is noted in `received`; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        # Python allows handlers in the main thread only; elsewhere whoever owns that thread decides.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _ASKED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        outer = getattr(self._before.get(number), "__self__", None)
        if isinstance(outer, StopSignals):
            # Whoever runs one loop after the other has to hear of it even if this loop was at its end already.
            outer.received = self.received
