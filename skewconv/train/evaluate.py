"""Metrics of a network on unseen images: clean, certified and attacked accuracy."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from skewconv.certify import Certifier, certified_accuracy, mean_radius
from skewconv.certify.certifier import margin_of
from skewconv.config import TrainConfig
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.module_tools import evaluating
from skewconv.progress import Tick
from skewconv.records import radius_name
from skewconv.train.data import Batches, Split, spread
from skewconv.train.step import pgd_survivors


@dataclass(frozen=True)
class Metrics:
    """Accuracies as shares of `images`; None where the regime does not measure them."""

    images: int
    clean: float
    certified: dict[str, float] | None = None
    lipschitz_upper_bound: float | None = None
    mean_radius: float | None = None
    attacked: float | None = None
    attacked_images: int | None = None

    @property
    def first_certified(self) -> float | None:
        return None if self.certified is None else next(iter(self.certified.values()))

    def plain(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def evaluate(
    model: nn.Module,
    split: Split,
    config: TrainConfig,
    *,
    images: int | None = None,
    quick: bool = False,
    device: torch.device | str = "cpu",
    progress: Tick | None = None,
) -> Metrics:
    """The metrics of a network, in eval mode, on the images of a split; regime, radii and attack are the config's.

    `quick` takes radii in the network's own precision, without the proof that covers rounding, and no attack: to
    monitor a run, not to report it. An exception of `progress` ends the evaluation.
    """
    chosen = spread(split, images)

    def batches(some: Split) -> Iterator[tuple[Tensor, Tensor]]:
        size, done = min(config.loading.eval_batch_size, len(some)), 0
        for batch in Batches(some, size, seed=0, shuffle=False, drop_last=False, device=device):
            yield batch
            done += len(batch[1])
            if progress is not None:
                progress(done, len(some))

    with evaluating(model):
        if config.regime.regime == "provable":
            certifier = None if quick else Certifier(model, split.image_shape, device)
            lipschitz = certifier.lipschitz if certifier else lipschitz_upper_bound(model, split.image_shape)
            right, found = 0, []
            with torch.inference_mode():
                for x, labels in batches(chosen):
                    if certifier is None:
                        logits = model(x)
                        predictions = logits.argmax(1)
                        found.append(margin_of(logits, labels).clamp_min(0) / (math.sqrt(2) * lipschitz))
                    else:
                        predictions, _, radii, _ = certifier(x, labels)
                        found.append(radii)
                    right += int((predictions == labels.to(predictions.device)).sum())
            every = torch.cat(found)
            shares = certified_accuracy(every, config.radii)
            certified = dict(zip(map(radius_name, config.radii), shares, strict=True))
            return Metrics(len(every), right / len(every), certified, lipschitz, mean_radius(every))
        with torch.inference_mode():
            right = sum(int((model(x).argmax(1) == labels).sum()) for x, labels in batches(chosen))
        metrics = Metrics(len(chosen), right / len(chosen))
        if config.regime.regime != "adversarial" or quick:
            return metrics
        attacked = spread(chosen, config.regime.attack_images)
        generator = Generator().manual_seed(config.seed)
        survivors = (pgd_survivors(model, x, labels, config.regime, generator) for x, labels in batches(attacked))
        share = sum(int(each.sum()) for each in survivors) / len(attacked)
        return replace(metrics, attacked=share, attacked_images=len(attacked))
