"""A figure of several seeds: its mean, and how far the seeds lie apart."""

from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Figure:
    """A number of a table: the mean of what the seeds gave; a number of one seed, or of the paper, is one value."""

    values: tuple[float, ...]
    digits: int = 2

    @property
    def mean(self) -> float:
        """Of all values."""
        return fmean(self.values)

    @property
    def spread(self) -> float | None:
        """The sample standard deviation; None if there is one value only."""
        return stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        """The mean, and the spread where there is one.

        >>> print(Figure((45.0, 46.0)), Figure((45.0,)))
        45.50 ± 0.71 45.00
        """
        spread = "" if self.spread is None else f" ± {self.spread:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{spread}"
