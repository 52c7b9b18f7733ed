"""Attacks evaluated: what was moved is clipped, measured and classified again, whatever the attack says of it."""

import copy
from collections.abc import Callable, Mapping, MutableSequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.certify.certifier import Certifier
from skewconv.certify.perturb import PGD, AutoAttack, BoundarySearch, Model, RoundingSearch, fgsm, lengths, per_image
from skewconv.choices import AttackName, AttackNorm
from skewconv.errors import ArgumentError, ShapeError, SkewconvError
from skewconv.nn.module_tools import first_tensor, unwrapped
from skewconv.progress import Tick
from skewconv.records import atomic_write, radius_name
from skewconv.rigor import vector_norm_up

Arithmetic: TypeAlias = Literal["model", "float64"]
# The distance of a point that was drawn into a ball is rounded up by a few units for each of its pixels.
_WITHIN = 1 - 2.0**-40
# Halvings of the way to the nearest boundary.
_HALVINGS = 30


class Attack(Protocol):
    """(model, images (n, *shape), labels (n,), radii (n,)) -> moved images (n, *shape)."""

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, radii: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Violation:
    """A point (float64) within the certified radius of an image, by its l2 distance rounded up, of another class."""

    index: int
    label: int
    prediction: int
    distance: float
    radius: float
    image: Tensor


@dataclass(frozen=True)
class AttackReport:
    """What an attack came to, next to what is certified.

    ``robust_accuracy`` is the share that the model as given, and in float64, still classifies rightly;
    ``certified_accuracy`` that of radii of at least the threshold, the l2 radius that holds the attack's ball, or 0
    where each image was attacked in its own. Violations are certificates broken, of which there must be none; flips are
    images inside their radius that only the model in its own precision classifies otherwise. ``steps`` counts images
    times calls of the model, and remarks say what the attack could not do on this model.
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
        """Write each violation as violation-INDEX.npy, float64; return the paths."""
        paths = []
        for violation in self.violations:
            paths.append(Path(folder) / f"violation-{violation.index}.npy")
            atomic_write(paths[-1], lambda file, v=violation: np.save(file, v.image.numpy()))  # type: ignore[misc]
        return paths


class CertifiedFunction(nn.Module):
    """Values by the very program that is certified, gradients through the float64 copy of the model.

    A model that cannot be certified has no program: its float64 copy gives the values too.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.exact = plain_copy(model).double()
        self.certifier: Certifier | None
        try:
            self.certifier = Certifier(model, shape)
        except SkewconvError:
            self.certifier = None

    def forward(self, x: Tensor) -> Tensor:
        x = x.double()
        if self.certifier is None or (torch.is_grad_enabled() and x.requires_grad):
            logits: Tensor = self.exact(x)
            return logits
        return self.certifier.logits(x).to(x.device)


class Counted(nn.Module):
    """A model that counts how often it is asked, one step for each image of each call, and tells ``tick``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.steps = model, 0
        self.tick: Callable[[int], None] = lambda steps: None

    def forward(self, x: Tensor) -> Tensor:
        self.steps += len(x)
        self.tick(self.steps)
        logits: Tensor = self.model(x)
        return logits


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode without gradients in its weights."""
    return copy.deepcopy(unwrapped(model)).eval().requires_grad_(False)


def check_lengths(images: Tensor, labels: Tensor, radii: Tensor) -> None:
    if not (len(images) == len(labels) == len(radii)):
        raise ShapeError(f"{len(images)} images, {len(labels)} labels and {len(radii)} radii: give as many of each")


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
    climbs: nn.Module | None = None,
    batch_size: int = 32,
    index: Tensor | None = None,
    progress: Tick | None = None,
    finished: MutableSequence[dict[str, Any]] | None = None,
) -> AttackReport:
    """Attack each image at a fraction of its own radius, or at one epsilon, and list every certificate broken.

    A certificate is broken by a point within the radius that the certified program, in float64, classifies otherwise.

    Args:
        model: images (n, *shape) in [0, 1] to logits; it is copied, and left as it is.
        radii: (n,), certified l2 radii.
        attack: PGD with 50 steps by default; see :func:`attack_by_name`.
        norm: of the attack's ball. An l-infinity ball of the same reach has the l2 radius divided by sqrt(pixels).
        epsilon: the radius of the ball for all images; each one's own certified radius by default.
        fraction: of its own certified radius; 1 for the whole of it.
        arithmetic: what the attack climbs: the model as given, or the float64 program that is certified.
        climbs: a model to climb in the place of the one given, such as the same one frozen.
        batch_size: images at a time.
        index: (n,), the numbers by which the report calls the images; 0 to n - 1 by default.
        progress: called with the steps done, and all; where an attack does not know their number, with images.
        finished: outcomes of batches, plain values for JSON. The first batches are not attacked again if their outcomes
            are here, and the others are appended as they end.
    """
    check_lengths(images, labels, radii)
    if len(images) == 0 or bool(((images < 0) | (images > 1)).any()):
        raise ArgumentError("images must be one or more and lie in [0, 1]: moved images are clipped to it")
    numbers = torch.arange(len(images)) if index is None else index.cpu()
    attack, shape = attack or PGD(norm), tuple(images.shape[1:])
    # An attack may leave a model in any state: it gets one of its own, and is evaluated on others.
    deployed, exact = plain_copy(model), CertifiedFunction(model, shape)
    climbed = Counted(CertifiedFunction(model, shape) if arithmetic == "float64" else plain_copy(climbs or model))
    like = first_tensor(model, images)
    dtype = torch.float64 if arithmetic == "float64" else like.dtype
    reach, limits = 1.0 if norm == "l2" else images[0].numel() ** 0.5, radii.double().cpu()
    ball = fraction * limits / reach if epsilon is None else torch.full_like(limits, epsilon)
    outcomes = [] if finished is None else finished
    calls = getattr(attack, "calls", None)
    for number, rows in enumerate(torch.arange(len(images)).split(batch_size)):
        attacked = (ball[rows] > 0).nonzero()[:, 0]
        if number < len(outcomes):
            climbed.steps += outcomes[number]["steps"]
            continue
        if progress is not None and calls is not None:
            climbed.tick = lambda steps: progress(steps, calls * int((ball > 0).sum()))
        before, moved = climbed.steps, images[rows].double().cpu()
        if len(attacked):
            which = rows[attacked]
            x, t = images[which].to(like.device, dtype), labels[which].to(like.device)
            found = attack(climbed, x, t, ball[which].to(like.device))
            moved[attacked] = _inside(found.double().cpu(), moved[attacked], ball[which], norm)
        given = (numbers[rows], images[rows].cpu(), moved, labels[rows].cpu(), limits[rows])
        outcomes.append({**_evaluated(deployed, exact, *given), "steps": climbed.steps - before})
        if progress is not None and calls is None:
            progress(int(rows[-1]) + 1, len(images))
    clean, kept, distance = (sum(o[name] for o in outcomes) / len(images) for name in ("clean", "kept", "distance"))
    rows_broken = [row for outcome in outcomes for row in outcome["violations"]]
    threshold = 0.0 if epsilon is None else epsilon * reach
    left_out = attack.left_out(outcomes[0]["classes"], shape) if isinstance(attack, AutoAttack) else {}
    return AttackReport(
        len(radii),
        clean,
        kept,
        float(((radii > 0) & (radii >= threshold)).double().mean()),
        threshold,
        distance,
        tuple(Violation(**{**row, "image": torch.tensor(row["image"], dtype=torch.float64)}) for row in rows_broken),
        tuple(flip for outcome in outcomes for flip in outcome["flips"]),
        climbed.steps,
        tuple(f"left out of AutoAttack: {reason}" for reason in left_out.values()),
    )


def _inside(moved: Tensor, images: Tensor, radii: Tensor, norm: AttackNorm) -> Tensor:
    """Whatever the attack returned, made a point of the ball and of [0, 1]; float64."""
    moved = torch.where(torch.isnan(moved), images, moved).clamp(0, 1)
    delta, radius = moved - images, per_image(radii, images)
    size = lengths(delta) if norm == "l2" else delta.abs().flatten(1).amax(1).view_as(radius)
    limit = vector_norm_up(delta.flatten(1)).view_as(radius) if norm == "l2" else size
    # A little less than the radius: the distance is rounded up when it is compared.
    shrunk = images + delta * (radius * _WITHIN / size.clamp_min(1e-300)).clamp_max(1.0)
    return torch.where(limit <= radius, moved, shrunk.clamp(0, 1))


def _evaluated(
    deployed: nn.Module, exact: Model, numbers: Tensor, images: Tensor, moved: Tensor, labels: Tensor, radii: Tensor
) -> dict[str, Any]:
    """Moved images by the model as given and by the float64 program: how many are right before and after, and where."""
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
        found = (numbers[i], labels[i], predictions[k, i], steps[k, i], radii[i], points[k, i])
        violations.append({field.name: value.tolist() for field, value in zip(fields(Violation), found, strict=True)})
    right = (predictions == labels).all(0)
    return {
        "clean": int(before.sum()),
        "kept": int((before & given & right).sum()),
        "distance": float(steps[0].sum()),
        "violations": violations,
        "flips": numbers[~given & inside[1] & right].tolist(),
        "classes": logits[0].shape[1],
    }


@dataclass(frozen=True)
class Tightness:
    """Distances to the nearest boundary found, divided by the radii: what certificates leave on the table, at most.

    Of the images with a radius, a boundary was found for some; median and quantiles of the quotients are None if for
    none. ``below`` has the indices of quotients of at most 1: certificates that do not hold.
    """

    images: int
    found: int
    median: float | None
    least: float | None
    tenth: float | None
    ninetieth: float | None
    steps: int
    below: tuple[int, ...]

    def results(self) -> dict[str, Any]:
        return {**asdict(self), "below": list(self.below)}


def measure_tightness(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    radii: Tensor,
    search: BoundarySearch | None = None,
    *,
    climbs: nn.Module | None = None,
    batch_size: int = 32,
    index: Tensor | None = None,
    progress: Tick | None = None,
    finished: MutableSequence[dict[str, Any]] | None = None,
) -> Tightness:
    """Search the nearest boundary of each certified image, and halve the way to it in the certified arithmetic.

    The search makes 100 steps by default. The other arguments are as for :func:`attack_certificates`; images without a
    radius are left out.
    """
    check_lengths(images, labels, radii)
    search, shape = search or BoundarySearch(), tuple(images.shape[1:])
    numbers = torch.arange(len(images)) if index is None else index.cpu()
    climbed, exact = Counted(plain_copy(climbs or model)), CertifiedFunction(model, shape)
    like = first_tensor(model, images)
    which = ((radii > 0) & torch.isfinite(radii)).nonzero()[:, 0].cpu()
    outcomes = [] if finished is None else finished
    if progress is not None:
        climbed.tick = lambda steps: progress(steps, search.steps * len(which))
    for number, rows in enumerate(which.split(batch_size)):
        if number < len(outcomes):
            climbed.steps += search.steps * len(rows)
            continue
        x, t = images[rows].to(like.device, like.dtype), labels[rows].to(like.device)
        point = search(climbed, x, t, radii[rows].to(like.device))
        distance = distance_on_segment(exact, x.double(), point.double(), t)
        outcomes.append({"quotients": (distance.cpu() / radii[rows].double().cpu()).tolist()})
    quotients = torch.tensor([q for outcome in outcomes for q in outcome["quotients"]], dtype=torch.float64)
    found = quotients[torch.isfinite(quotients)]
    shares = torch.tensor([0.5, 0.0, 0.1, 0.9], dtype=torch.float64)
    middle, least, tenth, ninetieth = found.quantile(shares).tolist() if len(found) else [None] * 4
    steps, below = climbed.steps + len(which) * (_HALVINGS + 1), tuple(numbers[which][quotients <= 1].tolist())
    return Tightness(len(which), len(found), middle, least, tenth, ninetieth, steps, below)


def distance_on_segment(
    exact: Model, images: Tensor, points: Tensor, labels: Tensor, halvings: int = _HALVINGS
) -> Tensor:
    """(n,) distances of the nearest points on the segments that are classified otherwise, infinite for none."""

    def moved(share: Tensor) -> tuple[Tensor, Tensor]:
        there = images + (points - images) * per_image(share, images)
        with torch.no_grad():
            return exact(there).argmax(1) != labels, there

    high = torch.ones(len(images), dtype=torch.float64, device=images.device)
    low, (wrong, last) = torch.zeros_like(high), moved(high)
    for _ in range(halvings):
        middle = (low + high) / 2
        falls, there = moved(middle)
        high, low = torch.where(falls, middle, high), torch.where(falls, low, middle)
        last = torch.where(per_image(falls, images), there, last)
    return torch.where(wrong, lengths(last - images).flatten(), torch.inf)
