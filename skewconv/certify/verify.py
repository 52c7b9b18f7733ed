"""Check certificates against the weights by a second path: other code, other bounds, no cache.

:mod:`skewconv.certify.second_path` says what it shares with the path that made them, and what it does not. For rounding
an estimate is subtracted, so radii are compared with a tolerance; without one they are proven in ball arithmetic.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.certify.certificates import COLUMNS, RECORD, Certificates, read_table, table_in
from skewconv.certify.fast import certified_function
from skewconv.certify.hashes import data_hash, weights_hash
from skewconv.certify.margins import margin_of
from skewconv.certify.probe import refuse_another_function
from skewconv.certify.second_path import row_distances, walk
from skewconv.choices import radius_of
from skewconv.errors import ArgumentError
from skewconv.nn.module_tools import float64_copy
from skewconv.ops.torch_modes import without_autocast
from skewconv.progress import Tick
from skewconv.records import RecordError, read_record

# The second path has its own slack in each bound, which is far below this.
RELATIVE_TOLERANCE = 1e-6
# Of the output of a layer: some roundings, enough to notice where they decide, and too few to hide an honest radius.
_ROUNDING = 2.0**-50
# Of a margin that was computed in float32.
FLOAT32_TOLERANCE = 1e-4


@dataclass(frozen=True)
class CheckReport:
    """What was found: every problem in words, and how the radii compare.

    Arguments:
        problems: empty if and only if the certificates hold.
        checked: how many rows were compared.
        largest_ratio: the largest claimed radius divided by the one derived here.
        lipschitz: the Lipschitz bound derived here.
    """

    problems: tuple[str, ...]
    checked: int
    largest_ratio: float
    lipschitz: float

    @property
    def sound(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.problems


def check_certificates(
    path: Path | str,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    batch_size: int = 64,
    progress: Tick | None = None,
) -> CheckReport:
    """Whether every radius in a file is at most the one derived here, up to 1e-6 of it and 1e-9.

    Args:
        path: certificates.csv, or its folder. The record beside it must be there.
        model: whose certificates they are said to be.
        images, labels: the data set they are said to be of: (n, *shape) and (n,). The file may speak of some of its
            images only, by their numbers.
        progress: called after each batch with the images done, and all.
    """
    table = table_in(path)
    claims = read_table(table)
    index = claims["index"]
    if len(index) == 0 or not bool(((index >= 0) & (index < len(images))).all()):
        raise ArgumentError(f"{table} has {len(index)} rows whose indices do not fit {len(images)} images")
    # Rows may stand in any order; the images were certified in that of their numbers.
    order = index.sort().values
    problems = check_record(table.with_name(RECORD), model, images[order], labels.cpu()[order])
    if len(index.unique()) != len(index):
        problems.append("an index occurs more than once")
    if bool((claims["label"] != labels.cpu()[index]).any()):
        problems.append("the labels are not those of the data")
    found = derive(
        table_function(table, model, tuple(images.shape[1:])), images[index], labels.cpu()[index], batch_size, progress
    )
    problems += _check_rows(claims, found) + check_figures(table.with_name(RECORD), claims, found.lipschitz)
    ratios = (claims["radius"] / found.radii)[found.radii > 0]
    return CheckReport(tuple(problems), len(index), float(ratios.max()) if len(ratios) else 0.0, found.lipschitz)


def table_function(table: Path, model: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """The network that the table speaks of; the model, if the record beside it is damaged, which is said elsewhere."""
    try:
        return certified_function(model, input_shape, read_record(table.with_name(RECORD))["results"])
    except (RecordError, AttributeError):
        return model


def _check_rows(claims: dict[str, Tensor], found: "Derived") -> list[str]:
    """What the rows say against what was derived."""
    claimed, index = claims["radius"], claims["index"].tolist()
    limit = found.most * (1 + RELATIVE_TOLERANCE)
    bad = ~((claimed >= 0) & (claimed <= limit))  # NaN is neither
    problems = [
        f"image {index[i]}: radius {float(claimed[i])!r} is claimed, at most {float(found.radii[i])!r} holds"
        for i in bad.nonzero()[:, 0].tolist()
    ]
    above = ~bad & ~((claims["radius_float32"] >= 0) & (claims["radius_float32"] <= claimed))
    problems += [
        f"image {index[i]}: the radius in float32 is above the one in float64" for i in above.nonzero()[:, 0].tolist()
    ]
    # Where two logits are within rounding of each other the two paths may order them differently.
    # Where nothing is certified, prediction and margin may be from an evaluation in float32.
    tolerance = torch.where(claimed > 0, RELATIVE_TOLERANCE, FLOAT32_TOLERANCE) * (1 + found.logits.abs().amax(1))
    guess, classes = claims["prediction"], found.logits.shape[1]
    there = found.logits.gather(1, guess.clamp(0, classes - 1)[:, None])[:, 0]
    other = (guess < 0) | (guess >= classes) | (there < found.logits.amax(1) - tolerance)
    problems += [f"image {index[i]}: the prediction is another" for i in other.nonzero()[:, 0].tolist()]
    margins = margin_of(found.logits, found.labels)
    same = ((claims["margin"] - margins).abs() <= tolerance) | (claims["margin"] == margins) | margins.isnan()
    return problems + [f"image {index[i]}: the margin is another" for i in (~same).nonzero()[:, 0].tolist()]


def check_figures(path: Path, claims: dict[str, Tensor], lipschitz: float = 0.0) -> list[str]:
    """What the record says of the table as a whole, and of the bound, where one was derived."""
    try:
        results = read_record(path)["results"]
        index, label, prediction, margin, radius, radius_float32 = (claims[name] for name in COLUMNS)
        table = Certificates(index, label, prediction, margin, radius, radius_float32, facts={})
        thresholds = [radius_of(name) for name in results["certified"]]
        problems = [
            f"the record's {name} is not that of the table"
            for name, value in table.results(thresholds).items()
            if not _close(results[name], value)
        ]
        if not float(results["lipschitz_upper_bound"]) * (1 + RELATIVE_TOLERANCE) >= lipschitz:
            problems.append(f"the record's Lipschitz bound is below {lipschitz!r}, which was derived")
    except RecordError:
        return []  # said already
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, ArgumentError) as error:
        return [f"the record beside the table is damaged: {error!r}"]
    return problems


def _close(given: Any, wanted: Any) -> bool:
    """Whether nested JSON values are equal, numbers to 1e-9."""
    if isinstance(wanted, dict):
        same = isinstance(given, dict) and given.keys() == wanted.keys()
        return same and all(_close(given[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list):
        return isinstance(given, list) and len(given) == len(wanted) and all(map(_close, given, wanted))
    # A NaN among the radii was reported with its row.
    return (
        bool(given == wanted)
        or math.isnan(wanted)
        or math.isclose(float(given), float(wanted), rel_tol=1e-9, abs_tol=1e-12)
    )


class Derived(NamedTuple):
    """What the second path says: radii (n,), logits (n, classes), the labels (n,) used, and the Lipschitz bound.

    `most` (n,) is what the radii could be had every rounding gone their way; where there is no radius, it is 0 too.
    """

    radii: Tensor
    most: Tensor
    logits: Tensor
    labels: Tensor
    lipschitz: float


def derive(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int, progress: Tick | None = None) -> Derived:
    """Radii and what they come from by the second path, on the CPU."""
    exact = float64_copy(model)
    layers = walk(exact, tuple(images.shape[1:]))
    head, factors = layers[-1].matrix, [layer.lipschitz for layer in layers]
    # Rational numbers, in which a product of small bounds does not vanish, and one of large bounds does not overflow.
    finite = all(map(math.isfinite, factors))
    before = math.prod(map(Fraction, factors[:-1]), start=Fraction(1)) if finite else None
    whole = None if before is None else before * Fraction(factors[-1])

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer.run(x)
        return x

    with torch.no_grad(), without_autocast(torch.device("cpu")):
        refuse_another_function(exact, run, tuple(images.shape[1:]), torch.device("cpu"))
        parts, lost = [], []
        for x in images.cpu().split(batch_size):
            y, off = x.double(), torch.zeros(len(x), dtype=torch.float64)
            for layer in layers:
                y = layer.run(y)
                off = off * layer.lipschitz + _ROUNDING * y.flatten(1).norm(dim=1)
            parts.append(y)
            lost.append(off)
            if progress is not None:
                progress(sum(map(len, parts)), len(images))
        logits, off = torch.cat(parts), torch.cat(lost)
    if before is None or whole is None:
        nothing = torch.zeros(len(images), dtype=torch.float64)
        return Derived(nothing, nothing, logits, labels.to(torch.int64), math.inf)
    slopes = {t: _slopes(t, logits.shape[1], head, before, whole) for t in set(labels.tolist())}
    rows = zip(logits.numpy(), labels, off.tolist(), strict=True)
    found = [[_radius(row, int(t), slopes[int(t)], sign * lost) for sign in (1, -1)] for row, t, lost in rows]
    radii, most = torch.tensor(found, dtype=torch.float64).view(-1, 2).unbind(1)
    return Derived(radii, torch.where(radii > 0, most, 0.0), logits, labels.to(torch.int64), _nearest(whole))


def _slopes(t: int, classes: int, head: np.ndarray | None, before: Fraction, whole: Fraction) -> list[Fraction]:
    """For each other class i a Lipschitz constant of f_t - f_i."""
    slopes = [whole * Fraction(math.sqrt(2))] * (classes - 1)
    if head is None:
        return slopes
    return [min(slope, before * Fraction(d)) for slope, d in zip(slopes, row_distances(head, t), strict=True)]


def _radius(z: np.ndarray, t: int, slopes: list[Fraction], lost: float) -> float:
    # Once at the image, and once at the point that it moves to, for each of two logits.
    gaps = z[t] - np.delete(z, t) - 4 * lost
    if not (np.isfinite(z).all() and (gaps > 0).all()):
        return 0.0
    quotients = [_nearest(Fraction(float(gap)) / slope) for gap, slope in zip(gaps, slopes, strict=True) if slope]
    return min(quotients, default=math.inf)


def _nearest(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_record(path: Path, model: nn.Module, images: Tensor, labels: Tensor) -> list[str]:
    """What the record beside a table says of weights and data, against those at hand."""
    try:
        results = read_record(path)["results"]
    except RecordError as error:
        return [f"the record beside the table cannot be read: {error}"]
    if not isinstance(results, dict):
        return ["the record beside the table holds no results"]
    problems = []
    if results.get("images") != len(images):
        problems.append(f"{len(images)} certificates for {results.get('images')} images")
    wanted = {"weights_sha256": weights_hash(model), "data_sha256": data_hash(images, labels)}
    names = {"weights_sha256": "weights", "data_sha256": "data"}
    return problems + [
        f"the {names[k]} are not those certified: their hash differs" for k, v in wanted.items() if results.get(k) != v
    ]
