"""The figures of a network on test images: clean, certified and attacked accuracy, and the bound they rest on."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from skewconv.config import TrainConfig
from skewconv.nn import lipschitz_upper_bound
from skewconv.train.adversarial import pgd_survivors
from skewconv.train.data import Batches, Split
from skewconv.train.losses import margins


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

    def plain(self) -> dict[str, Any]:
        """The figures that there are, for a record."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def radius_name(radius: float) -> str:
    """How a radius is called in records: in 255ths where it is a whole number of them, as in the literature.

    >>> radius_name(36 / 255), radius_name(1.0), radius_name(0.25)
    ('36/255', '1', '0.25')
    """
    levels = radius * 255
    whole = abs(levels - round(levels)) < 1e-9 and round(levels) % 255
    return f"{round(levels)}/255" if whole else f"{radius:g}"


def evaluate(
    model: nn.Module,
    split: Split,
    config: TrainConfig,
    *,
    images: int | None = None,
    attack: bool = True,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] = lambda count: None,
) -> Figures:
    """All figures of a network on (the first) images of a split; the network is in eval mode while it is judged.

    Args:
        model: images in [0, 1] to logits; its mode is put back.
        split: the images.
        config: regime, radii and attack.
        images: how many, evenly spread over the split; all by default.
        attack: whether to attack where the regime is adversarial.
        device: where the network lies.
        progress: called with the number of images done.
    """
    chosen = _spread(split, images)
    was_training = model.training
    model.eval()
    try:
        batches = Batches(
            chosen,
            min(config.loading.eval_batch_size, len(chosen)),
            seed=config.seed,
            augment=False,
            shuffle=False,
            drop_last=False,
            device=device,
        )
        proved = config.regime.regime == "provable"
        bound = lipschitz_upper_bound(model, split.images.shape[1:]) if proved else None
        right = count = 0
        found: list[Tensor] = []
        with torch.inference_mode():
            for x, labels in batches:
                logits = model(x)
                right += int((logits.argmax(1) == labels).sum())
                if bound is not None:
                    found.append(_radii(logits, labels, bound))
                count += len(labels)
                progress(count)
        if bound is not None:
            every = torch.cat(found)
            certified = {radius_name(r): float((every >= r).sum()) / count for r in config.radii}
            return Figures(count, right / count, certified, bound, float(every.mean()))
        if config.regime.regime == "adversarial" and attack:
            return Figures(count, right / count, **_attacked(model, chosen, config, device))
        return Figures(count, right / count)
    finally:
        model.train(was_training)


def _radii(logits: Tensor, labels: Tensor, bound: float) -> Tensor:
    return margins(logits.double(), labels).clamp_min(0) / (math.sqrt(2) * bound)


def _attacked(model: nn.Module, split: Split, config: TrainConfig, device: torch.device | str) -> dict[str, Any]:
    regime = config.regime
    some = _spread(split, regime.attack_images)
    generator = Generator().manual_seed(config.seed)
    size = min(config.loading.eval_batch_size, len(some))
    standing = 0
    for x, labels in Batches(some, size, seed=0, augment=False, shuffle=False, drop_last=False, device=device):
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


def _spread(split: Split, count: int | None) -> Split:
    """`count` images, evenly spread: folders list their classes one after the other."""
    if count is None or count >= len(split):
        return split
    index = [i * len(split) // count for i in range(count)]
    return Split(split.images[index], split.labels[index])
