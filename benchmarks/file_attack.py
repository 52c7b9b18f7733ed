"""Attacks on the radii that a file gives, evaluated by the file itself, in the arithmetic of its runtime."""

from dataclasses import dataclass

import torch
from torch import Tensor

from skewconv.certify import PGD
from skewconv.errors import ArgumentError
from skewconv.export.target import Runner
from skewconv.frozen import FrozenModel
from skewconv.progress import Tick

# Attacked points are kept inside of the radius by a little more than float32 rounds.
_INSIDE = 1 - 2.0**-20


@dataclass(frozen=True)
class FileAttack:
    """What an attack found.

    Args:
        images: how many had a radius above zero, and were attacked.
        steps: how often the twin was asked for a gradient or for logits, once for each image.
        mean_distance: l2, of the points that the attack ended at.
        median_share: of the radius that the attack went.
        flips: the places of images which the file classifies otherwise at a point inside their radius: there must be
            none.
    """

    images: int
    steps: int
    mean_distance: float
    median_share: float
    flips: tuple[int, ...]


def attack_file(
    runner: Runner,
    twin: FrozenModel,
    images: Tensor,
    attack: PGD | None = None,
    *,
    batch_size: int = 64,
    progress: Tick | None = None,
) -> FileAttack:
    """Move each image to the end of the radius that the file gives it, and ask the file for the class there.

    Args:
        runner: of the file, which gives radii.
        twin: the frozen model that the file was made of; its gradients lead the attack.
        images: (n, *shape) in [0, 1], float32.
        attack: PGD with 200 steps and 5 restarts by default.
        batch_size: images at a time.
        progress: called with the images done, and all.
    """
    attack = attack or PGD(steps=200, restarts=5)
    attacked, distances, shares, flips = 0, [], [], []
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        logits, radius = runner(batch)
        if radius is None:
            raise ArgumentError("the file gives no radii: there is nothing to attack")
        classes, held = logits.argmax(1), (radius > 0).nonzero()[:, 0]
        if len(held):
            moved = attack(twin, batch[held], classes[held], radius[held] * _INSIDE)
            length = (moved.double() - batch[held].double()).flatten(1).norm(dim=1)
            inside = length < radius[held].double()
            other = runner(moved)[0].argmax(1) != classes[held]
            flips += (held[inside & other] + start).tolist()
            attacked += len(held)
            distances.append(length)
            shares.append(length / radius[held].double())
        if progress is not None:
            progress(min(start + batch_size, len(images)), len(images))
    lengths = torch.cat(distances) if distances else torch.zeros(1, dtype=torch.float64)
    share = float(torch.cat(shares).median()) if shares else 0.0
    # Each restart asks once more for the margins at its end.
    steps = attacked * attack.restarts * (attack.steps + 1)
    return FileAttack(attacked, steps, float(lengths.mean()), share, tuple(flips))
