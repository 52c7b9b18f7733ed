"""AutoAttack, through torchattacks, with a radius for each image."""

import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.certify.perturb import Norm
from skewconv.errors import ArgumentError
from skewconv.extras import optional


@dataclass(frozen=True)
class AutoAttack:
    """APGD on the cross entropy, targeted APGD, targeted FAB and Square, one after the other until one succeeds.

    torchattacks takes one radius for all images. Each image is therefore shown in coordinates in which its own ball has
    that radius; see :class:`Rescaled`.

    Arguments:
        norm: "l2" or "linf".
        queries: of Square, 5000 in the standard version.
        seed: of all random numbers.

    Reference: Croce, Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
    attacks", 2020.
    """

    norm: Norm = "l2"
    queries: int = 5000
    seed: int = 0

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, radii: Tensor) -> Tensor:
        """The moved images (n, *shape); where nothing was found, the images themselves."""
        package: ModuleType = optional("torchattacks", "torchattacks", "attacks")
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
                found = self._attack(package, scaled, scaled.anchors, labels, scaled.radius, classes)
                moved = scaled.image(found, torch.arange(len(images), device=images.device))
        finally:
            np.random.set_state(state)  # noqa: NPY002
        return moved

    def _attack(
        self, package: ModuleType, model: nn.Module, images: Tensor, labels: Tensor, radius: float, classes: int
    ) -> Tensor:
        norm = {"l2": "L2", "linf": "Linf"}[self.norm]
        attack: Any = package.AutoAttack(model, norm=norm, eps=radius, n_classes=classes, seed=self.seed)
        for part in attack._autoattack.attacks:
            if hasattr(part, "n_queries"):
                part.n_queries = self.queries
        result: Tensor = attack(images, labels)
        return result.detach()


class Rescaled(nn.Module):
    """The model in coordinates z = x / s with s = radius / (smallest radius) >= 1 of the nearest image.

    The balls of all images then have the smallest radius, and [0, 1] in z holds [0, 1] in x, to which x is clipped. An
    attack does not say which image a point belongs to: it is that of the nearest centre. Where this is wrong, which
    takes images closer than their balls, the attack is weaker and the judgement of it as strict as ever.

    Args:
        model: images (n, *shape) to logits.
        images: (n, *shape) in [0, 1].
        radii: (n,), above zero.
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
