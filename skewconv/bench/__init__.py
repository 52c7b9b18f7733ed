"""Measurements side by side, in one process, with the proven error beside the time."""

from skewconv.bench.literal import LiteralSOC, literal
from skewconv.bench.suites import SUITES, SuiteReport, peak_bytes, side_by_side

__all__ = ["SUITES", "LiteralSOC", "SuiteReport", "literal", "peak_bytes", "side_by_side"]
