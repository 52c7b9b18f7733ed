"""What the records of Table 2 say of the paper's three claims, in sentences: never more than the seeds allow."""

import math
from collections.abc import Iterable, Iterator
from statistics import fmean, variance

from skewconv.reproduce.table import Record

_RADIUS = "36/255"
# A difference counts if it is twice the standard deviation that the seeds give it.
_DEVIATIONS = 2.0
# Fewer runs than this, less the number of methods, say nothing of the noise.
_LEAST_FREEDOM = 2


def findings(records: Iterable[Record]) -> list[str]:
    """Does SOC lie above BCOP, and does it stay flat with depth while BCOP falls?

    Args:
        records: of `skewconv reproduce table2`; certified accuracy at 36/255 is what is compared.
    """
    shares = _shares(records)
    noise = _noise(shares)
    if noise is None:
        return ["Too few runs are finished to tell a difference between methods from one between seeds."]
    found = [
        f"Between seeds the certified accuracy at {_RADIUS} has a standard deviation of {noise:.2f} points; a "
        f"difference counts below if it is more than {_DEVIATIONS:g} standard deviations of its own."
    ]
    return [*found, *_order(shares, noise), *_depth(shares, noise)]


def _shares(records: Iterable[Record]) -> dict[tuple[int, str], list[float]]:
    """(depth, convolution) -> certified accuracies in percent; a run that diverged has none of the images."""
    shares: dict[tuple[int, str], list[float]] = {}
    for record in records:
        model, results = record["config"]["model"], record["results"]
        share = results["certified"][_RADIUS] if results["status"] == "finished" else 0.0
        shares.setdefault((model["depth"], model["conv"]), []).append(100 * share)
    return shares


def _noise(shares: dict[tuple[int, str], list[float]]) -> float | None:
    """The standard deviation between seeds, pooled over the methods that have several."""
    several = [values for values in shares.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if freedom < _LEAST_FREEDOM:
        return None
    return math.sqrt(sum((len(values) - 1) * variance(values) for values in several) / freedom)


def _compared(some: list[float], others: list[float], noise: float) -> tuple[float, bool]:
    """The difference of the means, and whether it counts."""
    difference = fmean(some) - fmean(others)
    return difference, abs(difference) > _DEVIATIONS * noise * math.sqrt(1 / len(some) + 1 / len(others))


def _order(shares: dict[tuple[int, str], list[float]], noise: float) -> Iterator[str]:
    both = [depth for depth, conv in sorted(shares) if conv == "soc" and (depth, "bcop") in shares]
    words: dict[str, list[str]] = {"holds": [], "is reversed": [], "cannot be told from noise": []}
    for depth in both:
        difference, counts = _compared(shares[depth, "soc"], shares[depth, "bcop"], noise)
        verdict = "cannot be told from noise" if not counts else "holds" if difference > 0 else "is reversed"
        words[verdict].append(f"{depth} ({difference:+.2f} points)")
    for verdict, depths in words.items():
        if depths:
            yield f"SOC above BCOP: this order of the paper {verdict} at depth {', '.join(depths)}."


def _depth(shares: dict[tuple[int, str], list[float]], noise: float) -> Iterator[str]:
    for conv, name in (("soc", "SOC"), ("bcop", "BCOP")):
        depths = sorted(depth for depth, which in shares if which == conv)
        if len(depths) < 2:
            continue
        first, last = depths[0], depths[-1]
        change, counts = _compared(shares[last, conv], shares[first, conv], noise)
        verdict = "flat within noise" if not counts else "it falls" if change < 0 else "it rises"
        yield f"{name} from depth {first} to {last}: {change:+.2f} points, {verdict}."
