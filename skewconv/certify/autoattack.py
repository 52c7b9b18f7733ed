"""AutoAttack, through torchattacks, with a radius for each image."""

import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.certify.perturb import Norm
from skewconv.errors import ArgumentError, SkewconvError


class MissingExtraError(SkewconvError, ImportError):
    """A package that only some uses need is not installed."""


@dataclass(frozen=True)
class AutoAttack:
    """APGD on the cross entropy, targeted APGD, targeted FAB and Square, one after the other until one succeeds.

    torchattacks takes one radius for all images, so images of equal radius are attacked together: for certificates,
    one by one.

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
        package = _torchattacks()
        moved = images.clone()
        with torch.no_grad():
            classes = model(images[:1]).shape[1]
        if classes < 2:
            raise ArgumentError("AutoAttack needs a model with at least two classes")
        state = np.random.get_state()  # noqa: NPY002 (torchattacks draws from the global generator)
        devices = [images.device] if images.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for radius in radii.unique().tolist():
                    rows = (radii == radius).nonzero()[:, 0]
                    moved[rows] = self._attack(package, model, images[rows], labels[rows], radius, classes)
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


def _torchattacks() -> ModuleType:
    try:
        import torchattacks  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError(
            f"AutoAttack needs torchattacks, which cannot be imported ({error}): pip install 'skewconv[attacks]'"
        ) from error
    module: ModuleType = torchattacks
    return module
