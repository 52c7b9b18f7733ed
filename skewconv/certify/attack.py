"""Attacks evaluated: what was moved is clipped, measured and classified again, whatever the attack says of it."""

import math
import warnings
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.certify.boundary_search import RoundingSearch
from skewconv.certify.perturb import (
    PGD,
    Arithmetic,
    CertifiedFunction,
    Counted,
    check_lengths,
    fgsm,
    lengths,
    per_image,
    plain_copy,
)
from skewconv.choices import AttackName, AttackNorm
from skewconv.errors import ArgumentError, ShapeError
from skewconv.extras import optional
from skewconv.nn.module_tools import first_tensor
from skewconv.progress import Tick
from skewconv.records import atomic_write, radius_name
from skewconv.rigor import vector_norm_up

# The distance of a point that was drawn into a ball is rounded up by a few units for each of its pixels.
_WITHIN = 1 - 2.0**-40


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


@dataclass(frozen=True)
class AutoAttack:
    """APGD on the cross entropy, targeted APGD, targeted FAB and Square, one after the other until one succeeds.

    torchattacks takes one radius for all images. Each image is therefore shown in coordinates in which its own ball has
    that radius; see :class:`Rescaled`. Its own default of ten iterations is not the published attack, which makes 100.

    Arguments:
        queries: of Square.
        steps: of each run of APGD and FAB.

    Reference: Croce, Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
    attacks", 2020.
    """

    norm: AttackNorm = "l2"
    queries: int = 5000
    steps: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("queries", "steps"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, got {getattr(self, name)}")

    def left_out(self, classes: int, shape: Sequence[int]) -> dict[str, str]:
        """Which of the four attacks cannot run on a model of these classes and image shape (c, h, w), and why."""
        reasons = {"APGDT": f"targeted APGD needs 4 classes, there are {classes}"} if classes < 4 else {}
        height, width = shape[1:]
        # The side of Square's first square, made odd.
        side = max(round(math.sqrt(0.8 * height * width)), 3) | 1
        if self.norm == "l2" and (height < 5 or side > min(height, width)):
            reasons["Square"] = f"Square in l2 needs images of 5 x 5 pixels or more, nearly square: {tuple(shape)}"
        return reasons

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, radii: Tensor) -> Tensor:
        """The moved images (n, *shape); where nothing was found, the images themselves."""
        package: ModuleType = optional("torchattacks", "torchattacks", "attacks")
        if images.dim() != 4:
            raise ShapeError(
                f"AutoAttack is for images (n, channels, height, width), got {tuple(images.shape)}: use PGD"
            )
        with torch.no_grad():
            classes = model(images[:1]).shape[1]
        if classes < 2:
            raise ArgumentError("AutoAttack needs a model with at least two classes")
        state = np.random.get_state()  # noqa: NPY002 (torchattacks draws from the global generator)
        devices = [images.device] if images.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # In eval mode throughout: torchattacks puts a model back into the mode it found.
                scaled = Rescaled(model, images, radii.to(images)).eval()
                attack = self._attack(package, scaled, classes, images.shape[1:])
                found = attack(scaled.anchors, labels).detach()
                return scaled.image(found, torch.arange(len(images), device=images.device))
        finally:
            np.random.set_state(state)  # noqa: NPY002

    def _attack(self, package: ModuleType, model: "Rescaled", classes: int, shape: Sequence[int]) -> Any:
        norm = {"l2": "L2", "linf": "Linf"}[self.norm]
        attack: Any = package.AutoAttack(model, norm=norm, eps=model.radius, n_classes=classes, seed=self.seed)
        unfit, every = self.left_out(classes, shape), attack._autoattack.attacks
        attack._autoattack.attacks = [part for part in every if type(part).__name__ not in unfit]
        for part in attack._autoattack.attacks:
            for name, value in (("n_queries", self.queries), ("steps", self.steps)):
                if hasattr(part, name):
                    setattr(part, name, value)
        return attack


class Rescaled(nn.Module):
    """The model in coordinates z = x / s with s = radius / (smallest radius) >= 1 of the nearest image.

    The balls of all images (n, *shape) then have the smallest of the radii (n,), and [0, 1] in z holds [0, 1] in x, to
    which x is clipped. An attack does not say which image a point belongs to: it is that of the nearest centre. Where
    this is wrong, which takes images closer than their balls, the attack is weaker; its evaluation is not.
    """

    def __init__(self, model: nn.Module, images: Tensor, radii: Tensor) -> None:
        super().__init__()
        self.model, self.radius = model, float(radii.min())
        self.scales = (radii / self.radius).clamp_min(1.0).view(-1, *(1,) * (images.dim() - 1))
        self.anchors = images / self.scales

    def image(self, z: Tensor, owner: Tensor) -> Tensor:
        return (z * self.scales[owner]).clamp(0, 1)

    def forward(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            owner = torch.cdist(z.detach().flatten(1), self.anchors.flatten(1)).argmin(1)
        logits: Tensor = self.model(self.image(z, owner))
        return logits


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
    deployed: nn.Module,
    exact: nn.Module,
    numbers: Tensor,
    images: Tensor,
    moved: Tensor,
    labels: Tensor,
    radii: Tensor,
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
        known: dict[str, Any] = {
            "index": int(numbers[i]),
            "label": int(labels[i]),
            "prediction": int(predictions[k, i]),
        }
        known |= {"distance": float(steps[k, i]), "radius": float(radii[i])}
        violations.append({**known, "image": points[k, i].tolist()})
    right = (predictions == labels).all(0)
    return {
        "clean": int(before.sum()),
        "kept": int((before & given & right).sum()),
        "distance": float(steps[0].sum()),
        "violations": violations,
        "flips": numbers[~given & inside[1] & right].tolist(),
        "classes": logits[0].shape[1],
    }
