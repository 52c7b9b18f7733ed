"""AutoAttack, through torchattacks, with a radius for each image."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.choices import AttackNorm
from skewconv.errors import ArgumentError, ShapeError
from skewconv.extras import optional


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
        """Which of the four attacks cannot run on a model of these classes and image shape (c, h, w), and why.

        >>> AutoAttack().left_out(3, (1, 8, 8))
        {'APGDT': 'targeted APGD needs 4 classes, there are 3'}
        """
        reasons = {"APGDT": f"targeted APGD needs 4 classes, there are {classes}"} if classes < 4 else {}
        height, width = shape[1:]
        # The side of Square's first square, made odd.
        side = max(round(math.sqrt(0.8 * height * width)), 3) | 1
        if self.norm == "l2" and (height < 5 or side > min(height, width)):
            reasons["Square"] = f"Square in l2 needs images of 5 x 5 pixels or more, nearly square: {tuple(shape)}"
        return reasons

    def remarks(self, classes: int, shape: Sequence[int]) -> list[str]:
        """What a reader of the result must know of it: the attacks that were left out."""
        return [f"left out of AutoAttack: {reason}" for reason in self.left_out(classes, shape).values()]

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
        """x for points z (n, *shape) that belong to the images ``owner`` (n,)."""
        return (z * self.scales[owner]).clamp(0, 1)

    def forward(self, z: Tensor) -> Tensor:
        """(n, *shape) -> (n, classes)."""
        with torch.no_grad():
            owner = torch.cdist(z.detach().flatten(1), self.anchors.flatten(1)).argmin(1)
        logits: Tensor = self.model(self.image(z, owner))
        return logits
