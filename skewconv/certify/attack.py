"""Attacks evaluated: the images that an attack returns are clipped, measured and classified again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.certify.autoattack import AutoAttack
from skewconv.certify.boundary_search import RoundingSearch
from skewconv.certify.perturb import (
    PGD,
    Arithmetic,
    CertifiedFunction,
    attacked_function,
    check_lengths,
    fgsm,
    lengths,
    per_image,
    plain_copy,
)
from skewconv.choices import AttackName, AttackNorm, radius_name
from skewconv.errors import ArgumentError
from skewconv.nn.module_tools import first_tensor
from skewconv.progress import Tick
from skewconv.records import atomic_write
from skewconv.rigor import vector_norm_up

# The distance of a point that was drawn into a ball is rounded up by a few units for each of its pixels.
_WITHIN = 1 - 2.0**-40


class Attack(Protocol):
    """(model, images (n, *shape), labels (n,), radii (n,)) -> moved images (n, *shape)."""

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, radii: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Violation:
    """A point inside a certified radius that is classified otherwise: a certificate that does not hold.

    Arguments:
        index: of the image.
        label, prediction: what it is, and what the certified float64 program says of the moved image.
        distance: l2, rounded up, and still at most ``radius``.
        radius: certified.
        image: (*shape), the moved image, float64.
    """

    index: int
    label: int
    prediction: int
    distance: float
    radius: float
    image: Tensor


@dataclass(frozen=True)
class AttackReport:
    """What an attack came to, next to what is certified.

    Arguments:
        images: how many were attacked.
        clean_accuracy: of the model as given.
        robust_accuracy: the share that the model as given, and in float64, still classifies rightly.
        certified_accuracy: the share whose radius is at least ``threshold``, and above zero.
        threshold: the l2 radius that holds the ball of the attack; 0 where each image was attacked in its own.
        mean_distance: l2, of the moved images.
        violations: every certificate broken. There must be none.
        flips: images inside their radius that only the model as given, in its own precision, classifies otherwise.
        steps: how often the attack asked the model, once for each image of each call.
        remarks: what the attack could not do on this model.
    """

    images: int
    clean_accuracy: float
    robust_accuracy: float
    certified_accuracy: float
    threshold: float
    mean_distance: float
    violations: tuple[Violation, ...]
    flips: tuple[int, ...]
    steps: int
    remarks: tuple[str, ...] = ()

    def results(self) -> dict[str, Any]:
        """The report for a record; violations without their images."""
        rows = [{name: value for name, value in vars(v).items() if name != "image"} for v in self.violations]
        return {
            "images": self.images,
            "clean": self.clean_accuracy,
            "attacked": self.robust_accuracy,
            "certified": {radius_name(self.threshold): self.certified_accuracy},
            "mean_distance": self.mean_distance,
            "steps": self.steps,
            "remarks": list(self.remarks),
            "flips": list(self.flips),
            "violations": rows,
        }

    def save(self, folder: Path | str) -> list[Path]:
        """Write each violation as violation-INDEX.npy, float64, and .png where Pillow is there; return the paths."""
        paths = []
        for violation in self.violations:
            path, array = Path(folder) / f"violation-{violation.index}.npy", violation.image.numpy()
            atomic_write(path, lambda file, array=array: np.save(file, array))  # type: ignore[misc]
            paths.append(path)
            if (picture := _picture(array)) is not None:
                paths.append(path.with_suffix(".png"))
                atomic_write(paths[-1], lambda file, p=picture: p.save(file, format="png"))  # type: ignore[misc]
        return paths


def _picture(array: Any) -> Any:
    try:
        from PIL import Image
    except ImportError:
        return None
    if array.ndim != 3 or array.shape[0] not in (1, 3):
        return None
    pixels = np.rint(array * 255).astype(np.uint8)
    return Image.fromarray(pixels[0] if array.shape[0] == 1 else pixels.transpose(1, 2, 0))


def _rounding_search(norm: AttackNorm, **options: Any) -> Attack:
    if norm != "l2":
        raise ArgumentError(f"the rounding search is for norm 'l2', in which radii are, got {norm!r}")
    return RoundingSearch(**options)


#: name -> the attack, from the norm and its options
ATTACKS: Mapping[AttackName, Callable[..., Attack]] = {
    "fgsm": lambda norm: lambda model, images, labels, radii: fgsm(model, images, labels, radii, norm),
    "pgd": PGD,
    "autoattack": AutoAttack,
    "rounding": _rounding_search,
}


def attack_by_name(kind: AttackName, norm: AttackNorm = "l2", **options: Any) -> Attack:
    """FGSM, PGD, AutoAttack or a rounding search; the options are those of the class of that name."""
    if kind not in ATTACKS:
        raise ArgumentError(f"kind must be one of {', '.join(map(repr, ATTACKS))}, got {kind!r}")
    return ATTACKS[kind](norm, **options)


def attack_certificates(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    radii: Tensor,
    attack: Attack | None = None,
    *,
    norm: AttackNorm = "l2",
    epsilon: float | None = None,
    fraction: float = 0.99,
    arithmetic: Arithmetic = "model",
    batch_size: int = 256,
    index: Tensor | None = None,
    progress: Tick | None = None,
) -> AttackReport:
    """Attack each image at a fraction of its own radius, or at one epsilon, and list every certificate broken.

    A certificate is broken by a point within the radius that the certified program, in float64, classifies otherwise.

    Args:
        model: images to logits; it is copied, and left as it is.
        images: (n, *shape), floating, in [0, 1].
        labels: (n,).
        radii: (n,), certified l2 radii.
        attack: PGD with 50 steps by default; see :func:`attack_by_name`.
        norm: of the attack's ball. An l-infinity ball of the same reach has the l2 radius divided by sqrt(pixels).
        epsilon: the radius of the ball for all images; each one's own certified radius by default.
        fraction: of its own certified radius; 1 for the whole of it.
        arithmetic: what the attack climbs: the model as given, or the float64 program that is certified.
        batch_size: images at a time.
        index: (n,), the numbers by which the report calls the images; 0 to n - 1 by default.
        progress: called after each batch with the images done, and all.
    """
    check_lengths(images, labels, radii)
    if len(images) == 0 or bool(((images < 0) | (images > 1)).any()):
        raise ArgumentError("images must be one or more and lie in [0, 1]: moved images are clipped to it")
    numbers = torch.arange(len(images)) if index is None else index.cpu()
    attack, shape = attack or PGD(norm), tuple(images.shape[1:])
    # An attack may leave a model in any state: it gets a copy of its own, and its images are evaluated on others.
    climbed = attacked_function(model, shape, arithmetic)
    deployed, exact = plain_copy(model), CertifiedFunction(model, shape)
    like = first_tensor(model, images)
    dtype = torch.float64 if arithmetic == "float64" else like.dtype
    reach, limits = 1.0 if norm == "l2" else images[0].numel() ** 0.5, radii.double().cpu()
    ball = fraction * limits / reach if epsilon is None else torch.full_like(limits, epsilon)
    batches = []
    for rows in torch.arange(len(images)).split(batch_size):
        moved = images[rows].double().cpu()
        attacked = (ball[rows] > 0).nonzero()[:, 0]
        if len(attacked):
            which = rows[attacked]
            x, t = images[which].to(like.device, dtype), labels[which].to(like.device)
            found = attack(climbed, x, t, ball[which].to(like.device))
            moved[attacked] = _inside(found.double().cpu(), moved[attacked], ball[which], norm)
        given = (numbers[rows], images[rows].cpu(), moved, labels[rows].cpu(), limits[rows])
        batches.append(_judged(deployed, exact, *given))
        if progress is not None:
            progress(int(rows[-1]) + 1, len(images))
    clean, kept, distances = (float(torch.cat(c).double().mean()) for c in zip(*(b[:3] for b in batches), strict=True))
    threshold = 0.0 if epsilon is None else epsilon * reach
    return AttackReport(
        len(radii),
        clean,
        kept,
        float(((radii > 0) & (radii >= threshold)).double().mean()),
        threshold,
        distances,
        tuple(violation for batch in batches for violation in batch.violations),
        tuple(flip for batch in batches for flip in batch.flips),
        climbed.steps,
        tuple(attack.remarks(batches[0].classes, shape)) if isinstance(attack, AutoAttack) else (),
    )


def _inside(moved: Tensor, images: Tensor, radii: Tensor, norm: AttackNorm) -> Tensor:
    """Whatever the attack returned, made a point of the ball and of [0, 1]; float64."""
    moved = torch.where(torch.isnan(moved), images, moved).clamp(0, 1)
    delta, radius = moved - images, per_image(radii, images)
    size = lengths(delta) if norm == "l2" else delta.abs().flatten(1).amax(1).view_as(radius)
    limit = vector_norm_up(delta.flatten(1)).view_as(radius) if norm == "l2" else size
    # A little less than the radius: the distance is rounded up when it is measured.
    shrunk = images + delta * (radius * _WITHIN / size.clamp_min(1e-300)).clamp_max(1.0)
    return torch.where(limit <= radius, moved, shrunk.clamp(0, 1))


class _Judged(NamedTuple):
    """A batch: right before the attack (n,), right after it (n,), l2 distances (n,), and what is broken."""

    clean: Tensor
    kept: Tensor
    distances: Tensor
    violations: list[Violation]
    flips: list[int]
    classes: int


def _judged(
    deployed: nn.Module,
    exact: nn.Module,
    numbers: Tensor,
    images: Tensor,
    moved: Tensor,
    labels: Tensor,
    radii: Tensor,
) -> _Judged:
    """Evaluate moved images with the model as given and by the float64 program."""
    like = first_tensor(deployed, images)
    # The precision in which the model runs is part of the point it sees: both points are evaluated.
    seen = moved.to(like.dtype).double()
    points = torch.stack([moved, seen])
    with torch.no_grad():
        logits = [deployed(x.to(like.device, like.dtype)).cpu() for x in (images, seen)]
        predictions = torch.stack([exact(x.to(like.device)).argmax(1).cpu() for x in points])
    before, given = (z.argmax(1) == labels for z in logits)
    # Rounded up: a point that is not proven to be inside breaks nothing.
    steps = torch.stack([vector_norm_up((x - images.double()).flatten(1)) for x in points])
    inside = (radii > 0) & (steps <= radii)
    broken, violations = (predictions != labels) & inside, []
    for i in broken.any(0).nonzero()[:, 0].tolist():
        k = int(broken[:, i].nonzero()[0])
        found = (int(numbers[i]), int(labels[i]), int(predictions[k, i]), float(steps[k, i]), float(radii[i]))
        violations.append(Violation(*found, points[k, i].clone()))
    right = (predictions == labels).all(0)
    flips = numbers[~given & inside[1] & right].tolist()
    return _Judged(before, before & given & right, steps[0], violations, flips, logits[0].shape[1])
