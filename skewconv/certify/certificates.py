"""Certificates of a data set: computed in batches, on one device or many, and written to files.

Fast certificates are of the network frozen at a tolerance, evaluated in float64 only where something can be proven. A
certificate needs a gain of at most one, and no exact orthogonality. The frozen network is a function of its own, with
fewer products, its own proven bounds and its own radii; they are not radii of the network that it was made from.
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

from skewconv.certify.certified_accuracy import THRESHOLDS, certified_accuracy, curve, mean_radius
from skewconv.certify.certifier import PIXELS, Certifier, Verdicts
from skewconv.certify.float32 import ATTACKED_IMAGES, DifferenceMeter, largest_norm
from skewconv.certify.hashes import data_hash, operators_hash, weights_hash
from skewconv.certify.margins import margin_of
from skewconv.checks import check_counts
from skewconv.choices import radius_name
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.frozen import freeze
from skewconv.models.input_check import any_values
from skewconv.nn.module_tools import evaluating, first_tensor
from skewconv.progress import Tick
from skewconv.records import atomic_write, make_record, write_record

#: the columns of the table: (the field of the certificates, its heading, which names the program it speaks of)
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
METHOD = (
    "float64 evaluation of the model in eval mode with its weights as stored; a proven bound on the rounding error of "
    "the logits is subtracted from each margin, once for the image and once for the point it may move to; "
    "radius_float32 is for the model in its own precision, whose logits may differ from those by the float32 slack"
)
#: by how much the outputs of the frozen network may differ from the original's, relative to the activations
FAST_TOLERANCE = 1e-3
#: so many images of a fast certificate are also measured where an attack has put them
FAST_ATTACKED_IMAGES = 200
FAST_METHOD = (
    "; the network certified is the one frozen at the tolerance that stands here, a function of its own; an image that "
    "it gets wrong in its own precision has the radius 0, and its margin is from there"
)


class CertificateError(SkewconvError):
    """A file that does not hold certificates."""


@dataclass(frozen=True)
class Certificates:
    """One row an image, and what the rows belong to. All tensors are (n,) on the CPU.

    Args:
        index: the number of each image in its data set.
        label, prediction: classes.
        margin: f_t - max f_i for the label t, in float64.
        radius: proven for the float64 program, in the units of the images; 0 where nothing is certified.
        radius_float32: the same less a slack for the model in float32; how that is known is in the facts.
        facts: how the radii were obtained: bounds, what was subtracted for rounding, hashes.
        files: the name of the file of each image, where they are files.
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
        radii, wanted = list(thresholds), self.radius
        return {
            "images": len(self),
            "clean": float((self.prediction == self.label).double().mean()),
            "certified": dict(zip(map(radius_name, radii), certified_accuracy(wanted, radii), strict=True)),
            "certified_float32": dict(
                zip(map(radius_name, radii), certified_accuracy(self.radius_float32, radii), strict=True)
            ),
            "mean_radius": mean_radius(wanted),
            "curve": [list(point) for point in curve(wanted)],
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

        Args:
            thresholds: the radii at which certified accuracy is reported.
            config, seed: of the run, for the record.
            more: further results for the record, such as where the images are from.
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
    """The table of a folder, or the file itself."""
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
        model: images to logits; it is copied, and left as it is.
        images: (n, *shape), floating, in [0, 1].
        labels: (n,), integers.
        batch_size: images at a time.
        device: where to compute; the model's own by default.
        fabric: a launched lightning_fabric.Fabric; each process then takes a share, and all get the whole result.
        input_range: see :class:`Certifier`; None for a model of inputs that are no pixels in [0, 1].
        index: (n,), the number of each image in its data set; 0, 1, 2, ... by default.
        files: the name of the file of each image, where they are files.
        progress: called after each batch with the images done, and all.
        fast_tol: certify the model frozen at this tolerance instead, a function of its own with fewer products, and use
            float64 only for images that it gets right in its own precision (the others have the radius 0).
    """
    if len(images) == 0 or len(images) != len(labels):
        raise ArgumentError(f"there are {len(images)} images and {len(labels)} labels; give as many of each, and some")
    check_counts(batch_size=batch_size)
    rank, world = (0, 1) if fabric is None else (fabric.global_rank, fabric.world_size)
    where = device if fabric is None else fabric.device
    subject, fast = fast_function(model, tuple(images.shape[1:]), fast_tol), fast_tol is not None
    certifier = Certifier(subject, tuple(images.shape[1:]), where, input_range=input_range)
    # Equal shares, the last images twice if need be: gathering wants tensors of one length.
    share = math.ceil(len(images) / world)
    meter = DifferenceMeter(subject, certifier, FAST_ATTACKED_IMAGES if fast else ATTACKED_IMAGES)
    mine = torch.arange(share).mul(world).add(rank).clamp(max=len(images) - 1)
    parts = []
    for chunk in mine.split(batch_size):
        if fast:
            found, judged, given = screened(subject, certifier, images[chunk], labels[chunk])
            meter.compare_clean(given[judged], found.logits[judged])
        else:
            found = certifier(images[chunk], labels[chunk])
            meter.measure_clean(images[chunk], found.logits)
        parts.append(torch.cat([torch.stack([found.predictions, found.margins, found.radii]), found.logits.T]).cpu())
        meter.measure_attacked(images[chunk], labels[chunk], found.radii.to(images.device))
        if progress is not None:
            progress(min(world * sum(part.shape[1] for part in parts), len(images)), len(images))
    table = torch.cat(parts, 1)
    if world > 1:
        table = fabric.all_gather(table.to(fabric.device)).cpu().permute(1, 2, 0).flatten(1)[:, : len(images)]
        meter.gather(fabric)
    (prediction, margin, radius), logits = table[:3], table[3:].T
    largest = largest_norm(images)
    slack = meter.slack(margin, radius, largest)
    shrunk = []
    for chunk in torch.arange(len(images)).split(batch_size):
        x, z, t = (rows[chunk].to(certifier.device) for rows in (images, logits, labels))
        shrunk.append(certifier.radii_by_rival(x, z, t.to(torch.int64), slack.growth).amin(1).cpu())
    places = torch.arange(len(images)) if index is None else index.cpu()
    order = places.argsort(stable=True)
    facts = {
        "method": METHOD + FAST_METHOD * fast,
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
        "operators_sha256": operators_hash(certifier),
        "weights_sha256": weights_hash(model),
        # In the order of their numbers, in which a check finds them.
        "data_sha256": data_hash(images[order], labels[order]),
    }
    whole = (places, labels.cpu().to(torch.int64), prediction.to(torch.int64), margin, radius, torch.cat(shrunk))
    return Certificates(*whole, facts, files)


def fast_function(model: nn.Module, input_shape: tuple[int, ...], tol: float | None) -> nn.Module:
    """The network that a certificate speaks of: the model itself, or, with a tolerance, the model frozen at it."""
    return model if tol is None else freeze(model, input_shape, tol=tol)


def function_facts(tol: float | None) -> dict[str, Any]:
    """What a record says of it: nothing of a network as it was trained."""
    return {} if tol is None else {"function": {"kind": "frozen", "tol": tol}}


def certified_function(model: nn.Module, input_shape: tuple[int, ...], results: Mapping[str, Any]) -> nn.Module:
    """The network that the certificates of a record speak of, made anew from the model.

    Args:
        model: whose certificates they are said to be.
        input_shape: of one image.
        results: of the record beside the table.
    """
    facts = results.get("function")
    if facts is None:
        return model
    tol = facts.get("tol") if isinstance(facts, Mapping) and facts.get("kind") == "frozen" else None
    if not isinstance(tol, float):
        raise ArgumentError(f"the record speaks of the function {facts!r}, which this version does not know")
    if not 0 < tol <= FAST_TOLERANCE:
        raise ArgumentError(
            f"the record speaks of the network frozen at a tolerance of {tol:g}, where {FAST_TOLERANCE:g} is the "
            "coarsest that is certified: certify it again"
        )
    return freeze(model, input_shape, tol=tol)


def screened(model: nn.Module, certifier: Certifier, images: Tensor, labels: Tensor) -> tuple[Verdicts, Tensor, Tensor]:
    """Verdicts, float64 only for images that the model gets right in its own precision; those, and its own logits.

    Nothing can be certified of an image that is classified wrongly, so its radius is 0 without a proof.

    Args:
        model: in its own precision.
        certifier: of the same model.
        images: (n, *shape).
        labels: (n,), integers.

    Returns:
        what is said of all images; which were evaluated in float64, (n,) booleans; the model's logits (n, classes).
    """
    tensor = first_tensor(model, images)
    with evaluating(model), torch.no_grad(), any_values():
        given = model(images.to(tensor.device, tensor.dtype)).to(certifier.device, torch.float64)
    t = labels.to(given.device, torch.int64)
    # A logit that is not finite is for the proof to judge.
    hopeful = (given.argmax(1) == t) | ~torch.isfinite(given).all(1)
    logits, margins, radii = given.clone(), margin_of(given, t), given.new_zeros(len(given))
    predictions = given.argmax(1)
    chosen = hopeful.to(images.device)
    if bool(hopeful.any()):
        found = certifier(images[chosen], labels[chosen.to(labels.device)])
        parts = (predictions, margins, radii, logits)
        for whole, part in zip(parts, (found.predictions, found.margins, found.radii, found.logits), strict=True):
            whole[hopeful] = part
    return Verdicts(predictions, margins, radii, logits), hopeful, given
