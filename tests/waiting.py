"""Clocks, and waits for other processes: bounds that only a hang meets, and words for "no time" and "failed"."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import pytest

# What is waited for takes seconds on a quiet machine; a busy one gets half an hour.
PATIENCE = 1800.0


def end(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """Kill it, and its session if it has one of its own: what it printed, and wrote to stderr."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    return process.communicate()


def output(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """Wait for its end: what it printed, and wrote to stderr."""
    try:
        return process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        _no_time(f"{process.args} still runs", process)


def wait_until(happened: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Until it happens; if the process ends first, the test fails with what it printed."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if process.poll() is not None:
            said = "\n".join(process.communicate())
            pytest.fail(f"{process.args} ended with status {process.returncode} before it happened:\n{said}")
        if time.monotonic() > deadline:
            _no_time(f"it has not happened, and {process.args} still runs", process)
        time.sleep(0.001)


def _no_time(what: str, process: "subprocess.Popen[str]") -> NoReturn:
    said = "\n".join(map(str, end(process)))
    pytest.fail(f"NO TIME: after {PATIENCE:.0f} s {what}; it hangs, or this machine is too busy:\n{said}")


class Ticking:
    """A clock that moves with every look at it."""

    def __init__(self, tick: float = 0.2) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now
