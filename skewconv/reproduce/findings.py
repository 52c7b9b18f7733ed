"""What the records of Table 2 say of the paper's three claims, in sentences: never more than the seeds allow."""

from collections.abc import Iterable, Iterator

from skewconv.reproduce.noise import DEVIATIONS, compared, noise_of
from skewconv.reproduce.table import Record

_RADIUS = "36/255"


def findings(records: Iterable[Record]) -> list[str]:
    """Does SOC lie above BCOP, and does it stay flat with depth while BCOP falls?

    Args:
        records: of `skewconv reproduce table2`; certified accuracy at 36/255 is what is compared.
    """
    shares = _shares(records)
    noise = noise_of(shares.values())
    if noise is None:
        return ["Too few runs are finished to tell a difference between methods from one between seeds."]
    found = [
        f"Between seeds the certified accuracy at {_RADIUS} has a standard deviation of {noise:.2f} points; a "
        f"difference counts below if it is more than {DEVIATIONS:g} standard deviations of its own."
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


def _order(shares: dict[tuple[int, str], list[float]], noise: float) -> Iterator[str]:
    both = [depth for depth, conv in sorted(shares) if conv == "soc" and (depth, "bcop") in shares]
    words: dict[str, list[str]] = {"holds": [], "is reversed": [], "cannot be told from noise": []}
    for depth in both:
        difference, counts = compared(shares[depth, "soc"], shares[depth, "bcop"], noise)
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
        change, counts = compared(shares[last, conv], shares[first, conv], noise)
        verdict = "flat within noise" if not counts else "it falls" if change < 0 else "it rises"
        yield f"{name} from depth {first} to {last}: {change:+.2f} points, {verdict}."
