"""Measurements: side by side, in one process, with the proof beside the time."""

from skewconv.bench.suites import SUITES, SuiteReport, run_suite
from skewconv.bench.timing import Timing, side_by_side

__all__ = ["SUITES", "SuiteReport", "Timing", "run_suite", "side_by_side"]
