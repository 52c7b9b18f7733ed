"""Certificates of a data set: computed in batches, on one device or many, written to files, and summed up.

Fast certificates are of the network frozen at a tolerance, a function of its own with fewer products, its own proven
bounds and its own radii, evaluated in float64 only where something can be proven.
"""

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.certify.certifier import PIXELS, Certifier, margin_of, tensors_hash, weights_hash
from skewconv.certify.float32 import ATTACKED_IMAGES, DifferenceMeter, largest_norm
from skewconv.checks import check_counts
from skewconv.choices import RADII
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.frozen import freeze
from skewconv.progress import Tick
from skewconv.records import atomic_write, make_record, radius_name, write_record

#: the radii at which certified accuracy is reported
THRESHOLDS = RADII
#: the field of the certificates -> the heading of its column, which names the program it speaks of
COLUMNS = {
    "index": "index",
    "label": "label",
    "prediction": "prediction",
    "margin": "margin",
    "radius": "radius_float64",
    "radius_float32": "radius_float32",
}
#: a last column where the images are files
FILE_COLUMN = "file"
TABLE, RECORD = "certificates.csv", "certificates.json"
_METHOD = (
    "float64 evaluation of the model in eval mode with its weights as stored; a proven bound on the rounding error of "
    "the logits is subtracted from each margin, once for the image and once for the point it may move to; "
    "radius_float32 is for the model in its own precision, whose logits may differ from those by the float32 slack"
)
#: by how much the outputs of the frozen network may differ from the original's, relative to the activations
FAST_TOLERANCE = 1e-3
# Images of a fast certificate that are also measured where an attack has put them.
_FAST_ATTACKED_IMAGES = 200
_FAST_METHOD = (
    "; the network certified is the one frozen at the tolerance that stands here, a function of its own; an image that "
    "it gets wrong in its own precision has the radius 0, and its margin is from there"
)


class CertificateError(SkewconvError):
    """A file that does not hold certificates."""


@dataclass(frozen=True)
class Certificates:
    """One row an image, and what the rows belong to. All tensors are (n,) on the CPU.

    ``index`` is the number of each image in its data set, ``margin`` f_t - max f_i for the label t in float64.
    ``radius`` is proven for the float64 program, in the units of the images, 0 where nothing is certified;
    ``radius_float32`` is less by a slack for the model in float32. The facts say how the radii were obtained: bounds,
    what was subtracted for rounding, hashes. ``files`` are the names of the images, where they are files.
    """

    index: Tensor
    label: Tensor
    prediction: Tensor
    margin: Tensor
    radius: Tensor
    radius_float32: Tensor
    facts: Mapping[str, Any]
    files: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.index)

    def results(self, thresholds: Iterable[float] = THRESHOLDS) -> dict[str, Any]:
        """Clean accuracy, certified accuracy at each threshold, mean radius, the curve, and the facts."""
        at = list(thresholds)
        names = [radius_name(threshold) for threshold in at]
        return {
            "images": len(self),
            "clean": float((self.prediction == self.label).double().mean()),
            "certified": dict(zip(names, certified_accuracy(self.radius, at), strict=True)),
            "certified_float32": dict(zip(names, certified_accuracy(self.radius_float32, at), strict=True)),
            "mean_radius": mean_radius(self.radius),
            "curve": [list(point) for point in curve(self.radius)],
            **self.facts,
        }

    def write(
        self,
        folder: Path | str,
        *,
        thresholds: Iterable[float] = THRESHOLDS,
        config: Any = None,
        seed: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Write certificates.csv and certificates.json into an existing folder; return the record.

        Config and seed of the run are for the record; ``more`` are further results, such as the name of the split.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        headings = tuple(COLUMNS.values())
        writer.writerow(headings if self.files is None else (*headings, FILE_COLUMN))
        # repr of a float is the shortest decimal that reads back as the same float.
        columns = [map(repr, getattr(self, name).tolist()) for name in COLUMNS]
        writer.writerows(zip(*columns, *(() if self.files is None else (self.files,)), strict=True))
        results = {**self.results(thresholds), **(more or {})}
        record = make_record("certify", config={} if config is None else config, seed=seed, results=results)
        atomic_write(Path(folder) / TABLE, text.getvalue().encode())
        write_record(Path(folder) / RECORD, record)
        return record


def table_in(path: str | os.PathLike[str]) -> Path:
    return Path(path) / TABLE if Path(path).is_dir() else Path(path)


def read_table(path: Path | str) -> dict[str, Tensor]:
    """The columns of certificates.csv: integers for the first three, float64 for margin and radii; no file names."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError) as error:
        raise CertificateError(f"{path}: cannot be read: {error}") from error
    headings = tuple(COLUMNS.values())
    if tuple(header) not in (headings, (*headings, FILE_COLUMN)):
        raise CertificateError(
            f"{path}: the columns are {header}, expected {list(headings)}; certify again if an older version wrote it"
        )
    try:
        columns = (list(zip(*rows, strict=True)) or [()] * len(COLUMNS))[: len(COLUMNS)]
        whole = [torch.tensor([int(v) for v in column], dtype=torch.int64) for column in columns[:3]]
        real = [torch.tensor([float(v) for v in column], dtype=torch.float64) for column in columns[3:]]
        return dict(zip(COLUMNS, [*whole, *real], strict=True))
    except (ValueError, OverflowError, RuntimeError) as error:  # an integer may be too large
        raise CertificateError(f"{path}: a row is damaged: {error}") from error


def certify_dataset(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    batch_size: int = 128,
    device: torch.device | str | None = None,
    fabric: Any = None,
    input_range: tuple[float, float] | None = PIXELS,
    index: Tensor | None = None,
    files: Sequence[str] | None = None,
    progress: Tick | None = None,
    fast_tol: float | None = None,
) -> Certificates:
    """Certify every image; see :func:`skewconv.certify.radii` for what is proven.

    Args:
        model, images, labels, input_range: as there; the device is the model's own by default.
        batch_size: images at a time.
        fabric: a launched lightning_fabric.Fabric; each process then takes a share, and all get the whole result.
        index: (n,), the number of each image in its data set; 0, 1, 2, ... by default.
        files: the name of the file of each image, where they are files.
        progress: called after each batch with the images done, and all.
        fast_tol: certify the model frozen at this tolerance instead, and use float64 only for images that it gets right
            in its own precision (the others have the radius 0).
    """
    if len(images) == 0 or len(images) != len(labels):
        raise ArgumentError(f"there are {len(images)} images and {len(labels)} labels; give as many of each, and some")
    check_counts(batch_size=batch_size)
    rank, world = (0, 1) if fabric is None else (fabric.global_rank, fabric.world_size)
    where = device if fabric is None else fabric.device
    shape, fast = tuple(images.shape[1:]), fast_tol is not None
    subject = fast_function(model, shape, fast_tol)
    certifier = Certifier(subject, shape, where, input_range=input_range)
    meter = DifferenceMeter(subject, certifier, _FAST_ATTACKED_IMAGES if fast else ATTACKED_IMAGES)
    # Equal shares, the last images twice if need be: gathering wants tensors of one length.
    share = math.ceil(len(images) / world)
    mine = torch.arange(share).mul(world).add(rank).clamp(max=len(images) - 1)
    parts = []
    for chunk in mine.split(batch_size):
        part = _certified(certifier, meter, images[chunk], labels[chunk], screen=fast)
        parts.append(part.cpu())
        meter.measure_attacked(images[chunk], labels[chunk], part[:, 0].to(images.device))
        if progress is not None:
            progress(min(world * sum(map(len, parts)), len(images)), len(images))
    table = torch.cat(parts)
    if world > 1:
        table = fabric.all_gather(table.to(fabric.device)).cpu().transpose(0, 1).flatten(0, 1)[: len(images)]
        meter.gather(fabric)
    radius, logits, truth = table[:, 0], table[:, 1:], labels.cpu().to(torch.int64)
    margin, largest = margin_of(logits, truth), largest_norm(images)
    slack = meter.slack(margin, radius, largest)
    shrunk, unlabelled = [], []
    for chunk in torch.arange(len(images)).split(batch_size):
        x, z, t = (rows[chunk].to(certifier.device) for rows in (images, logits, truth))
        shrunk.append(certifier.radii_by_rival(x, z, t, slack.growth).amin(1).cpu())
        unlabelled.append(certifier.radii_by_rival(x, z, z.argmax(1)).amin(1).cpu())
    places = torch.arange(len(images)) if index is None else index.cpu()
    order = places.argsort(stable=True)
    facts = {
        "method": _METHOD + _FAST_METHOD * fast,
        **function_facts(fast_tol),
        "lipschitz_upper_bound": certifier.lipschitz,
        "largest_pair_bound": float(certifier.pair_bounds.max()),
        "rounding_error_of_logits": {
            "per_unit_of_input_norm": certifier.rounding.slope,
            "constant": certifier.rounding.constant,
            "largest": certifier.rounding.at(largest),
        },
        "margin_subtracted_at_most": 2 * 2**0.5 * certifier.rounding.at(largest),
        "float32_slack": slack.facts(),
        # Of all images, right or wrong, for predictions to be compared with; of logits in float64 alone.
        **({} if fast else {"prediction_radii": quantiles(torch.cat(unlabelled))}),
        "weights_sha256": weights_hash(model),
        # In the order of their numbers, in which a check finds them.
        "data_sha256": data_hash(images[order], labels[order]),
    }
    return Certificates(places, truth, logits.argmax(1), margin, radius, torch.cat(shrunk), facts, files)


def _certified(certifier: Certifier, meter: DifferenceMeter, images: Tensor, labels: Tensor, *, screen: bool) -> Tensor:
    """(n, 1 + classes): radii and logits; the meter compares them with the model's own.

    With ``screen``, an image that the model gets wrong in its own precision has the radius 0 without a proof.
    """
    given = meter.logits(images).to(certifier.device, torch.float64)
    t = labels.to(given.device, torch.int64)
    # A logit that is not finite is left to the proof.
    rows = (given.argmax(1) == t) | ~torch.isfinite(given).all(1) if screen else torch.ones_like(t, dtype=torch.bool)
    found = certifier(images[rows.to(images.device)], labels[rows.to(labels.device)])
    meter.compare_clean(given[rows], found.logits)
    part = torch.cat([torch.zeros_like(given[:, :1]), given], 1)
    part[rows] = torch.cat([found.radii[:, None], found.logits], 1)
    return part


def fast_function(model: nn.Module, input_shape: tuple[int, ...], tol: float | None) -> nn.Module:
    """The network that a certificate speaks of: the model itself, or, with a tolerance, the model frozen at it."""
    return model if tol is None else freeze(model, input_shape, tol=tol)


def function_facts(tol: float | None) -> dict[str, Any]:
    return {} if tol is None else {"function": {"kind": "frozen", "tol": tol}}


def certified_function(model: nn.Module, input_shape: tuple[int, ...], results: Mapping[str, Any]) -> nn.Module:
    """The network that the certificates of a record (its results) speak of, made anew from the model."""
    facts = results.get("function")
    if facts is None:
        return model
    tol = facts.get("tol") if isinstance(facts, Mapping) and facts.get("kind") == "frozen" else None
    if not isinstance(tol, float) or not 0 < tol <= FAST_TOLERANCE:
        raise ArgumentError(
            f"the record speaks of the function {facts!r}, and this version certifies networks frozen at a tolerance "
            f"of up to {FAST_TOLERANCE:g}: certify again"
        )
    return fast_function(model, input_shape, tol)


def data_hash(images: Tensor, labels: Tensor) -> str:
    """SHA-256 of images and labels: dtype, shape and bits."""
    return tensors_hash([("", images), ("", labels)])


def certified_accuracy(radii: Tensor, thresholds: Iterable[float]) -> list[float]:
    """The share of images whose radius (n,), 0 for what is not certified, is at least each threshold, and above zero.

    >>> certified_accuracy(torch.tensor([0.0, 0.1, 0.2, 0.3]), [0.0, 0.15])
    [0.75, 0.5]
    """
    values = list(thresholds)
    if any(not t >= 0 for t in values):
        raise ArgumentError(f"thresholds must be >= 0, got {values}")
    if radii.dim() != 1 or len(radii) == 0:
        raise ArgumentError(f"radii must have shape (n,) with n >= 1, got {tuple(radii.shape)}")
    return [float(((radii >= t) & (radii > 0)).double().mean()) for t in values]


def curve(radii: Tensor, points: int = 101) -> list[tuple[float, float]]:
    """(threshold, certified accuracy) from zero to the largest finite radius, in equal steps.

    >>> curve(torch.tensor([0.0, 1.0]), points=3)
    [(0.0, 0.5), (0.5, 0.5), (1.0, 0.5)]
    """
    finite = radii[torch.isfinite(radii)]
    largest = float(finite.max()) if len(finite) else 0.0
    thresholds: Sequence[float] = torch.linspace(0, largest, points, dtype=torch.float64).tolist()
    return list(zip(thresholds, certified_accuracy(radii, thresholds), strict=True))


def quantiles(radii: Tensor) -> list[float]:
    """The quantiles 0%, 1%, ..., 100% of radii (n,)."""
    places = torch.linspace(0, 1, 101, dtype=torch.float64)
    return radii.double().quantile(places, interpolation="lower").tolist()


def mean_radius(radii: Tensor) -> float:
    """The mean over all images, those not certified counting as zero."""
    return float(radii.double().mean())
