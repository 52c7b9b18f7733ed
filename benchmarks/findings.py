"""What the records of a table say of the paper's claims, in sentences: never more than the seeds allow."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from scipy.special import stdtrit

from skewconv.reproduce.rows import Row
from skewconv.reproduce.table import Record

_RADIUS = "36/255"
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
        """The standard deviations from which a difference counts: the fewer runs, the more (Student's t).

        >>> round(Noise(1.0, 4).deviations, 2), round(Noise(1.0, 100).deviations, 2)
        (2.78, 1.98)
        """
        return float(stdtrit(self.freedom, (1 + _CONFIDENCE) / 2))

    def in_words(self) -> str:
        """When a difference counts, in a sentence."""
        return (
            f"has a standard deviation of {self.deviation:.2f} points; a difference counts if seeds alone would "
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


def findings(records: Iterable[Record]) -> list[str]:
    """Does SOC lie above BCOP, and does it stay flat with depth while BCOP falls?

    Args:
        records: of `skewconv reproduce table2`; certified accuracy at 36/255 is what is compared.
    """
    shares = _shares(records)
    noise = noise_of(shares.values())
    if noise is None:
        return ["Too few runs are finished to tell a difference between methods from one between seeds."]
    found = [f"Between seeds the certified accuracy at {_RADIUS} {noise.in_words()}."]
    return [*found, *_order(shares, noise), *_depth(shares, noise)]


def turning_point(records: Iterable[Record], depth: int = 5) -> list[str]:
    """From which epoch on SOC lies above BCOP, by the estimates on test images that every epoch ends with.

    Args:
        records: of `skewconv reproduce table2`; the first seed of each convolution counts.
    """
    curves: dict[str, list[float]] = {}
    for record in records:
        model, results = record["config"]["model"], record["results"]
        if model["depth"] == depth and results["status"] == "finished":
            curves.setdefault(model["conv"], [100 * point["certified"] for point in results["curve"]])
    if not {"soc", "bcop"} <= set(curves):
        return []
    leads = [soc > bcop for soc, bcop in zip(curves["soc"], curves["bcop"], strict=True)]
    ahead = len(leads) - next((k for k, leading in enumerate(reversed(leads)) if not leading), len(leads))
    when = f"from epoch {ahead + 1} on" if ahead < len(leads) else f"not within {len(leads)} epochs"
    told = ", ".join(f"{soc - bcop:+.1f}" for soc, bcop in zip(curves["soc"], curves["bcop"], strict=True))
    return [
        f"At depth {depth} SOC is above BCOP to the end {when} (seed 0; certified accuracy of SOC less that of BCOP "
        f"after each epoch, of the last on all test images, else on 1,000 of them: {told})."
    ]


def speed(times: Record | None, rows: Sequence[Row]) -> list[str]:
    """Is an epoch with SOC shorter than one with BCOP, as in the paper?

    Args:
        times: the record of `skewconv reproduce table2 --time`; wall seconds count if the machine was quiet.
        rows: of the paper, with its seconds.
    """
    if times is None:
        return []
    clock = "seconds_an_epoch" if times["results"]["quiet"] else "cpu_seconds_an_epoch"
    ours = {name: row[clock] for name, row in times["results"]["rows"].items()}
    theirs = {row.name: row.paper.seconds for row in rows if row.paper is not None}
    models = [name.removesuffix("/soc") for name in theirs if name.endswith("/soc")]
    pairs = [(model, f"{model}/soc", f"{model}/bcop") for model in models]
    both = [(model, soc, bcop) for model, soc, bcop in pairs if soc in ours and bcop in ours]
    if not both:
        return []
    ratios = [ours[soc] / ours[bcop] for _, soc, bcop in both]
    shorter = sum(ratio < 1 for ratio in ratios)
    verdict = "holds" if shorter == len(both) else "holds for some networks" if shorter else "does not hold"
    width = times["results"]["rows"][both[0][1]]["model"]["width"]
    told = ", ".join(f"{model} {ratio:.2f}" for (model, *_), ratio in zip(both, ratios, strict=True))
    paper = ", ".join(f"{theirs[soc] / theirs[bcop]:.2f}" for _, soc, bcop in both)
    return [
        f"SOC faster than BCOP: this {verdict} on two cores at width {width}. Seconds of a training epoch, SOC / BCOP: "
        f"{told} (the paper, on a GPU at width 32, with a costlier parametrization of BCOP: {paper})."
    ]


def of_decay(shares: Mapping[str, Sequence[float]], noise: Noise | None) -> list[str]:
    """Does weight decay hurt BCOP and help SOC, as the paper says?

    Args:
        shares: rows of `skewconv reproduce decay`, such as bcop/0.0001, and their certified accuracies in percent.
        noise: between the seeds of networks as small, trained as long.
    """
    found = []
    for conv in ("bcop", "soc"):
        base, shown = shares.get(f"{conv}/0"), (f"{conv}/0.0001", f"{conv}/0.0005")
        others = [name for name in shown if name in shares]
        if noise is None or base is None or not others:
            continue
        told = []
        for name in others:
            difference, counts = compared(shares[name], base, noise)
            told.append(f"{difference:+.2f} points with {name.partition('/')[2]}{'' if counts else ' (within noise)'}")
        found.append(f"Weight decay, {conv.upper()}, certified at {_RADIUS} against none: {', '.join(told)}.")
    return found


def beside_standard(records: Iterable[Record], rows: Sequence[Row], ours: str, theirs: str) -> list[str]:
    """How the convolutions of each network rank by a figure, the mean of their seeds, and how far from standard ones.

    Args:
        records: of finished runs; differences are not weighed against those between seeds.
        rows: of the paper.
        ours, theirs: the name of the figure in a record, and in a row of the paper.
    """
    found: dict[str, list[float]] = {}
    for record in records:
        found.setdefault(record["results"]["row"], []).append(100 * record["results"].get(ours, 0.0))
    networks: dict[str, dict[str, tuple[float, float]]] = {}
    for row in rows:
        if row.name in found and row.paper is not None:
            network, conv = row.name.split("/")
            networks.setdefault(network, {})[conv] = (fmean(found[row.name]), getattr(row.paper, theirs))
    return [f"{network}: {_beside(of)}" for network, of in networks.items() if len(of) > 1]


def _beside(figures: Mapping[str, tuple[float, float]]) -> str:
    names, paper = (", ".join(sorted(figures, key=lambda conv: -figures[conv][which])) for which in (0, 1))
    told = f"from the highest {names}{', as in the paper' if names == paper else f'; in the paper {paper}'}."
    if "standard" in figures:
        ours, theirs = ({conv: of[which] for conv, of in figures.items()} for which in (0, 1))
        above = {
            conv: (ours[conv] - ours["standard"], theirs[conv] - theirs["standard"])
            for conv in figures
            if conv != "standard"
        }
        told += " Points above standard convolutions: "
        told += ", ".join(f"{conv} {mine:+.2f} (the paper: {its:+.2f})" for conv, (mine, its) in above.items()) + "."
        if "soc" in above:
            mine, its = ("less" if abs(points) < 1 else "more" for points in above["soc"])
            told += f" Between SOC and standard convolutions lies {mine} than one point (the paper: {its})."
    return told


def _shares(records: Iterable[Record]) -> dict[tuple[int, str], list[float]]:
    """(depth, convolution) -> certified accuracies in percent; a run that diverged has none of the images."""
    shares: dict[tuple[int, str], list[float]] = {}
    for record in records:
        model, results = record["config"]["model"], record["results"]
        share = results["certified"][_RADIUS] if results["status"] == "finished" else 0.0
        shares.setdefault((model["depth"], model["conv"]), []).append(100 * share)
    return shares


def _order(shares: dict[tuple[int, str], list[float]], noise: Noise) -> Iterator[str]:
    both = [depth for depth, conv in sorted(shares) if conv == "soc" and (depth, "bcop") in shares]
    words: dict[str, list[str]] = {"holds": [], "is reversed": [], "cannot be told from noise": []}
    for depth in both:
        difference, counts = compared(shares[depth, "soc"], shares[depth, "bcop"], noise)
        verdict = "cannot be told from noise" if not counts else "holds" if difference > 0 else "is reversed"
        words[verdict].append(f"{depth} ({difference:+.2f} points)")
    for verdict, depths in words.items():
        if depths:
            yield f"SOC above BCOP: this order of the paper {verdict} at depth {', '.join(depths)}."


def _depth(shares: dict[tuple[int, str], list[float]], noise: Noise) -> Iterator[str]:
    for conv, name in (("soc", "SOC"), ("bcop", "BCOP")):
        depths = sorted(depth for depth, which in shares if which == conv)
        if len(depths) < 2:
            continue
        means = {depth: fmean(shares[depth, conv]) for depth in depths}
        best = max(means, key=means.__getitem__)
        yield f"{name} is highest at depth {best}, with {means[best]:.2f}%."
        for last in dict.fromkeys((20, depths[-1]) if 20 in depths[1:] else depths[-1:]):
            change, counts = compared(shares[last, conv], shares[depths[0], conv], noise)
            verdict = "flat within noise" if not counts else "it falls" if change < 0 else "it rises"
            yield f"{name} from depth {depths[0]} to {last}: {change:+.2f} points, {verdict}."
