"""Which test images are worth a look: the safest, the least safe, the wrong, those nearest to the boundary."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skewconv.report.collect import RunFacts
from skewconv.report.pictures import data_uri
from skewconv.report.stored import CertificateTable
from skewconv.train.data import Dataset

_READINGS = (
    ("Largest radii", "What the network is surest of: no change shorter than the radius alters these."),
    ("Smallest radii", "Right and certified, but hardly: a small change may be enough."),
    ("Wrong", "The most confident mistakes: here the label's logit is furthest below the prediction's."),
    ("Nearest to the boundary", "Right or wrong, the label's logit and the best other one are nearly equal."),
)


@dataclass(frozen=True)
class Shown:
    """An image of a gallery, ready for a page."""

    index: int
    picture: str
    label: str
    prediction: str
    right: bool
    margin: float
    radius: float


@dataclass(frozen=True)
class Gallery:
    """A row of images, and how to read it."""

    title: str
    reading: str
    images: tuple[Shown, ...]


def galleries(facts: RunFacts, count: int = 12) -> list[Gallery]:
    """The galleries of a run; none if it has no certificates, or its images cannot be had or are not the same."""
    table, data = facts.certificates, facts.dataset
    if table is None or not isinstance(data, Dataset) or not _same_labels(table, data):
        return []
    certified, finite = table.radius > 0, np.isfinite(table.margin)
    rows = (
        _first(-table.radius, certified),
        _first(table.radius, certified),
        _first(table.margin, ~table.right),
        _first(np.abs(table.margin), finite),
    )
    return [
        Gallery(title, reading, tuple(_shown(facts, table, data, row) for row in found[:count]))
        for (title, reading), found in zip(_READINGS, rows, strict=True)
    ]


def _same_labels(table: CertificateTable, data: Dataset) -> bool:
    if len(table) and int(table.index.max()) >= len(data.test):
        return False
    return bool(np.array_equal(data.test.labels[table.index], table.label))


def _first(order: NDArray[Any], among: NDArray[np.bool_]) -> list[int]:
    """The rows among those wanted, in that order."""
    rows = np.flatnonzero(among)
    return [int(row) for row in rows[np.argsort(order[rows], kind="stable")]]


def _shown(facts: RunFacts, table: CertificateTable, data: Dataset, row: int) -> Shown:
    index = int(table.index[row])
    return Shown(
        index,
        data_uri(data.test.images[index]),
        facts.class_name(int(table.label[row])),
        facts.class_name(int(table.prediction[row])),
        bool(table.right[row]),
        float(table.margin[row]),
        float(table.radius[row]),
    )
