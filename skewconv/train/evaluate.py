"""Metrics of a network on unseen images: clean, certified and attacked accuracy; and the evaluations of a run."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from skewconv.certify import Certifier, certified_accuracy, mean_radius
from skewconv.certify.certifier import Verdicts, margin_of
from skewconv.choices import radius_name
from skewconv.config import TrainConfig
from skewconv.errors import ArgumentError
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.module_tools import evaluating
from skewconv.progress import Tick, clock_time
from skewconv.train.build import Splits
from skewconv.train.data import Batches, Split, spread
from skewconv.train.logs import Display
from skewconv.train.step import TimePlan, pgd_survivors

# The last evaluation takes no more than this share of a budget of minutes.
LARGEST_SHARE = 0.08


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
        """The certified accuracy at the first radius."""
        return None if self.certified is None else next(iter(self.certified.values()))

    def plain(self) -> dict[str, Any]:
        """The metrics that are not None, for a record."""
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
    """The metrics of a network, in eval mode, on the images of a split.

    Args:
        model: images in [0, 1] to logits; its mode is restored.
        split: the images.
        config: regime, radii and attack.
        images: number of images, evenly spread over the split (default: all).
        quick: radii in the network's own precision, without the proof that covers rounding, and no attack: to monitor
            a run, not to report it.
        device: of the network.
        progress: called after each batch with the images done, and all; an exception it raises ends the evaluation.
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
            certifier = (_QuickCertifier if quick else Certifier)(model, split.image_shape, device)
            return _certified(certifier, batches(chosen), config.radii)
        with torch.inference_mode():
            right = sum(int((model(x).argmax(1) == labels).sum()) for x, labels in batches(chosen))
        found = Metrics(len(chosen), right / len(chosen))
        if config.regime.regime != "adversarial" or quick:
            return found
        attacked = spread(chosen, config.regime.attack_images)
        generator = Generator().manual_seed(config.seed)
        survivors = (pgd_survivors(model, x, labels, config.regime, generator) for x, labels in batches(attacked))
        share = sum(int(each.sum()) for each in survivors) / len(attacked)
        return replace(found, attacked=share, attacked_images=len(attacked))


class _QuickCertifier:
    """Radii margin / (sqrt(2) bound) in the precision of the network."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...], device: torch.device | str) -> None:
        self.model, self.lipschitz = model, lipschitz_upper_bound(model, shape)

    def __call__(self, images: Tensor, labels: Tensor) -> Verdicts:
        logits = self.model(images)
        found = margin_of(logits, labels)
        return Verdicts(logits.argmax(1), found, found.clamp_min(0) / (math.sqrt(2) * self.lipschitz), logits)


def _certified(
    certifier: Certifier | _QuickCertifier, batches: Iterable[tuple[Tensor, Tensor]], radii: Sequence[float]
) -> Metrics:
    right, found = 0, []
    with torch.inference_mode():
        for images, labels in batches:
            verdicts = certifier(images, labels)
            right += int((verdicts.predictions == labels.to(verdicts.predictions.device)).sum())
            found.append(verdicts.radii)
    every = torch.cat(found)
    certified = dict(zip(map(radius_name, radii), certified_accuracy(every, radii), strict=True))
    return Metrics(len(every), right / len(every), certified, certifier.lipschitz, mean_radius(every))


class Validation:
    """The evaluations of a run; they show their progress, and end at the next batch when `check` raises."""

    def __init__(
        self,
        config: TrainConfig,
        splits: Splits,
        model: nn.Module,
        device: Any,
        display: Display,
        check: Callable[[], None],
    ) -> None:
        self._config, self._splits, self._model, self._device = config, splits, model, device
        self._display, self._check = display, check
        self.final_images = len(splits.eval)

    def monitor(self) -> Metrics:
        """Some images, in the network's own precision: between epochs."""
        return self._evaluate("evaluating", self._config.monitor_images, quick=True)

    def final(self) -> Metrics:
        """All images, or as many as a budget has time for, with proofs."""
        whole = len(self._splits.eval)
        number = "all" if self.final_images == whole else f"{self.final_images:,}"
        return self._evaluate(f"evaluating on {number} {self._splits.name} images", self.final_images)

    def measure_final(self, clock: Callable[[], float], budget: float) -> float:
        """Expected seconds of the last evaluation, measured on some images; it takes as many as there is time for.

        Args:
            clock: in seconds.
            budget: of the whole run, in seconds. The last evaluation takes a small share of it, or one batch.
        """
        whole, batch = len(self._splits.eval), self._config.loading.eval_batch_size
        few, more = 1, min(batch, whole)
        seconds = []
        for images in (few, more):
            started = clock()
            self._evaluate("measuring how long the last evaluation takes", images)
            seconds.append(clock() - started)
        # Nearly all the time of one image is preparation. Attacks, where there are some, take nearly the rest.
        each = max(0.0, seconds[1] - seconds[0]) / max(1, more - few)
        attacked = self._config.regime.attack_images
        left = max(0.0, LARGEST_SHARE * budget - seconds[0])
        if attacked is None and each * whole > left:
            self.final_images = min(whole, max(more, int(left / each)))
        if self.final_images < whole:
            self._display.note(
                f"the last evaluation takes {self.final_images:,} of {whole:,} images, evenly spread, so that "
                f"{1 - LARGEST_SHARE:.0%} of the minutes are left; skewconv evaluate takes all"
            )
        return seconds[0] + each * min(self.final_images, attacked or whole)

    def refuse_short_budget(self, plan: TimePlan) -> None:
        """Raise at once if a budget is used up by what comes before and after training, and say what would do."""
        if plan.time_to_train() > 0:
            return
        # A third of the budget, at least, for steps.
        enough = math.ceil(15 * (plan.spent + plan.reserve) / 60) / 10
        raise ArgumentError(
            f"--minutes is {plan.seconds / 60:g}, which leaves no time to train: the start took "
            f"{clock_time(plan.spent)}, and the last evaluation, of {self.final_images:,} images, takes about "
            f"{clock_time(plan.reserve)} here; give --minutes {enough:g} or more, or --epochs"
        )

    def _evaluate(self, what: str, images: int, *, quick: bool = False) -> Metrics:
        def tick(done: int, total: int) -> None:
            self._display.work(what, done, total)
            self._check()

        self._display.work(what)
        options = {"images": images, "quick": quick, "device": self._device}
        return evaluate(self._model, self._splits.eval, self._config, **options, progress=tick)
