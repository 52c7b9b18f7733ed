"""How much seeds differ, and which differences are more than that."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

# A difference counts if chance alone makes one as large in fewer than one case in twenty.
_CONFIDENCE = 0.95
# Fewer runs than this, less the number of methods, say nothing of the noise.
_LEAST_FREEDOM = 2


@dataclass(frozen=True)
class Noise:
    """What seeds alone do to a figure.

    Attributes:
        deviation: the standard deviation between the seeds of a method.
        freedom: from how many runs it is known, less the number of methods.
    """

    deviation: float
    freedom: int

    @property
    def deviations(self) -> float:
        """A difference counts if it is so many of its standard deviations: the fewer runs, the more (Student's t).

        >>> round(Noise(1.0, 4).deviations, 2), round(Noise(1.0, 100).deviations, 2)
        (2.78, 1.98)
        """
        # scipy takes long to import, and the flags of the command are read without it.
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, (1 + _CONFIDENCE) / 2))

    def in_words(self) -> str:
        """When a difference counts, in a sentence."""
        return (
            f"has a standard deviation of {self.deviation:.2f} points; a difference counts below if seeds alone would "
            "make one as large in fewer than one case in twenty (Student's t with "
            f"{self.freedom} degrees of freedom: {self.deviations:.1f} standard deviations of its own)"
        )


def noise_of(groups: Iterable[Sequence[float]]) -> Noise | None:
    """The noise between the seeds of a method, pooled over those that have several; None if too few have.

    >>> noise_of([(50.0, 51.0, 52.0), (40.0,)]), noise_of([(50.0, 51.0)])
    (Noise(deviation=1.0, freedom=2), None)
    """
    several = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if freedom < _LEAST_FREEDOM:
        return None
    pooled = sum((len(values) - 1) * variance(values) for values in several) / freedom
    return Noise(math.sqrt(pooled), freedom)


def compared(some: Sequence[float], others: Sequence[float], noise: Noise) -> tuple[float, bool]:
    """The difference of the means, and whether it counts.

    >>> compared([52.0], [50.0], Noise(0.5, 4)), compared([52.0], [50.0], Noise(1.0, 4))
    ((2.0, True), (2.0, False))
    """
    difference = fmean(some) - fmean(others)
    deviation = noise.deviation * math.sqrt(1 / len(some) + 1 / len(others))
    return difference, abs(difference) > noise.deviations * deviation
