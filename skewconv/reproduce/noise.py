"""How much seeds differ, and which differences are more than that."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, variance

# A difference counts if it is twice the standard deviation that the seeds give it.
DEVIATIONS = 2.0
# Fewer runs than this, less the number of methods, say nothing of the noise.
_LEAST_FREEDOM = 2


def noise_of(groups: Iterable[Sequence[float]]) -> float | None:
    """The standard deviation between the seeds of a method, pooled over those that have several; None if too few have.

    >>> noise_of([(50.0, 51.0, 52.0), (40.0,)]), noise_of([(50.0, 51.0)])
    (1.0, None)
    """
    several = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if freedom < _LEAST_FREEDOM:
        return None
    return math.sqrt(sum((len(values) - 1) * variance(values) for values in several) / freedom)


def compared(some: Sequence[float], others: Sequence[float], noise: float) -> tuple[float, bool]:
    """The difference of the means, and whether it counts.

    >>> compared([52.0], [50.0], noise=0.5), compared([52.0], [50.0], noise=1.0)
    ((2.0, True), (2.0, False))
    """
    difference = fmean(some) - fmean(others)
    return difference, abs(difference) > DEVIATIONS * noise * math.sqrt(1 / len(some) + 1 / len(others))
