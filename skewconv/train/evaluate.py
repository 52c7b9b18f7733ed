"""The figures of a network on images it never saw: clean, certified and attacked accuracy, and their bound."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn

from skewconv.certify import Certifier, certified_accuracy, mean_radius
from skewconv.certify.certifier import Verdicts
from skewconv.certify.margins import margin_of
from skewconv.choices import radius_name
from skewconv.config import TrainConfig
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.module_tools import evaluating
from skewconv.progress import Tick
from skewconv.train.adversarial import pgd_survivors
from skewconv.train.data import Batches, Examples, spread


@dataclass(frozen=True)
class Figures:
    """Accuracies as shares of `images`. Absent are those that the regime does not speak of."""

    images: int
    clean: float
    certified: dict[str, float] | None = None
    lipschitz_upper_bound: float | None = None
    mean_radius: float | None = None
    attacked: float | None = None
    attacked_images: int | None = None

    @property
    def first_certified(self) -> float | None:
        """The certified accuracy at the first radius."""
        return None if self.certified is None else next(iter(self.certified.values()))

    def plain(self) -> dict[str, Any]:
        """The figures that there are, for a record."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def evaluate(
    model: nn.Module,
    split: Examples,
    config: TrainConfig,
    *,
    images: int | None = None,
    quick: bool = False,
    device: torch.device | str = "cpu",
    progress: Tick | None = None,
) -> Figures:
    """The figures of a network on the images of a split; the network is in eval mode while it is judged.

    Args:
        model: images in [0, 1] to logits; its mode is put back.
        split: the images.
        config: regime, radii and attack.
        images: how many, evenly spread over the split; all by default.
        quick: radii in the network's own precision, without the proof that covers rounding, and no attack: to watch a
            run, not to report it.
        device: where the network lies.
        progress: called after each batch with the images done, and all; what it raises ends the evaluation.
    """
    chosen = spread(split, images)
    with evaluating(model):
        if config.regime.regime == "provable":
            judge = _quick_judge(model, split) if quick else Certifier(model, split.image_shape, device)
            return _certified(judge, chosen, config, device, progress)
        clean = _clean(model, chosen, config, device, progress)
        if config.regime.regime == "adversarial" and not quick:
            return Figures(len(chosen), clean, **_attacked(model, chosen, config, device, progress))
        return Figures(len(chosen), clean)


class Judge(Protocol):
    """What certifies batches: a proven Lipschitz bound, and predictions and radii."""

    lipschitz: float

    def __call__(self, images: Tensor, labels: Tensor) -> Verdicts:
        """(n, C, H, W), (n,) -> predictions, margins and radii, (n,) each."""


class _QuickJudge:
    """margin / (sqrt(2) bound) in the precision of the network."""

    def __init__(self, model: nn.Module, lipschitz: float) -> None:
        self.model, self.lipschitz = model, lipschitz

    def __call__(self, images: Tensor, labels: Tensor) -> Verdicts:
        logits = self.model(images)
        found = margin_of(logits, labels)
        return Verdicts(logits.argmax(1), found, found.clamp_min(0) / (math.sqrt(2) * self.lipschitz), logits)


def _quick_judge(model: nn.Module, split: Examples) -> Judge:
    return _QuickJudge(model, lipschitz_upper_bound(model, split.image_shape))


def _certified(
    judge: Judge, split: Examples, config: TrainConfig, device: torch.device | str, progress: Tick | None
) -> Figures:
    right, found = 0, []
    with torch.inference_mode():
        for images, labels in _batches(split, config, device, progress):
            verdicts = judge(images, labels)
            right += int((verdicts.predictions == labels.to(verdicts.predictions.device)).sum())
            found.append(verdicts.radii)
    radii = torch.cat(found)
    names = map(radius_name, config.radii)
    certified = dict(zip(names, certified_accuracy(radii, config.radii), strict=True))
    return Figures(len(split), right / len(split), certified, judge.lipschitz, mean_radius(radii))


def _clean(
    model: nn.Module, split: Examples, config: TrainConfig, device: torch.device | str, progress: Tick | None
) -> float:
    with torch.inference_mode():
        batches = _batches(split, config, device, progress)
        return sum(int((model(images).argmax(1) == labels).sum()) for images, labels in batches) / len(split)


def _batches(
    split: Examples, config: TrainConfig, device: torch.device | str, progress: Tick | None
) -> Iterator[tuple[Tensor, Tensor]]:
    size, done = min(config.loading.eval_batch_size, len(split)), 0
    for batch in Batches(split, size, seed=0, augment=False, shuffle=False, drop_last=False, device=device):
        yield batch
        done += len(batch[1])
        if progress is not None:
            progress(done, len(split))


def _attacked(
    model: nn.Module, split: Examples, config: TrainConfig, device: torch.device | str, progress: Tick | None
) -> dict[str, Any]:
    regime = config.regime
    some = spread(split, regime.attack_images)
    generator = Generator().manual_seed(config.seed)
    standing = 0
    for x, labels in _batches(some, config, device, progress):
        survivors = pgd_survivors(
            model,
            x,
            labels,
            epsilon=regime.epsilon,
            step=regime.pgd_step,
            steps=regime.pgd_steps,
            restarts=regime.pgd_restarts,
            generator=generator,
        )
        standing += int(survivors.sum())
    return {"attacked": standing / len(some), "attacked_images": len(some)}
