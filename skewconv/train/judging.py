"""The evaluations of a run: they show how far they are, and end at the next batch when a signal asks for it."""

import math
import signal
from collections.abc import Callable
from typing import Any

from torch import nn

from skewconv.config import TrainConfig
from skewconv.errors import ArgumentError
from skewconv.progress import clock_time
from skewconv.train.budget import TimePlan
from skewconv.train.build import Parts
from skewconv.train.evaluate import Figures, evaluate
from skewconv.train.progress import Display
from skewconv.train.signals import StopSignals

# The last evaluation takes no more than this share of a budget of minutes.
LARGEST_SHARE = 0.08


class StopRequestedError(Exception):
    """A signal came while a network was being judged. Internal: the run is saved and ends."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.signal = number


class Judging:
    """Judges the network of a run by the images kept for that.

    Args:
        config: of the run.
        parts: its images.
        model: its network.
        device: where that lies.
        display: is shown how far an evaluation is.
        signals: are asked after every batch.
    """

    def __init__(
        self, config: TrainConfig, parts: Parts, model: nn.Module, device: Any, display: Display, signals: StopSignals
    ) -> None:
        self._config, self._parts, self._model, self._device = config, parts, model, device
        self._display, self._signals = display, signals
        self.last_images = len(parts.judged)

    def on_the_way(self) -> Figures:
        """Some images, in the network's own precision: to watch a run."""
        return self._judge("evaluating", self._config.monitor_images, quick=True)

    def in_the_end(self) -> Figures:
        """All images, or as many as a budget has time for, with proofs."""
        whole = len(self._parts.judged)
        if self.last_images == whole:
            return self._judge(f"evaluating on all {self._parts.name} images", None)
        return self._judge(f"evaluating on {self.last_images:,} {self._parts.name} images", self.last_images)

    def seconds_of_the_end(self, clock: Callable[[], float], budget: float) -> float:
        """How long the last evaluation will take, measured on some images; it judges as many as there is time for.

        Args:
            clock: in seconds.
            budget: of the whole run, in seconds. The last evaluation takes no more than a small share of it, but for at
                least one batch.
        """
        whole, batch = len(self._parts.judged), self._config.loading.eval_batch_size
        few, more = 1, min(batch, whole)
        seconds = []
        for images in (few, more):
            started = clock()
            self._judge("measuring how long the last evaluation takes", images)
            seconds.append(clock() - started)
        # What one image takes is preparation, nearly all of it. Attacks, where there are some, take nearly the rest.
        each = max(0.0, seconds[1] - seconds[0]) / max(1, more - few)
        attacked = self._config.regime.attack_images
        left = max(0.0, LARGEST_SHARE * budget - seconds[0])
        if attacked is None and each * whole > left:
            self.last_images = min(whole, max(more, int(left / each)))
        if self.last_images < whole:
            self._display.note(
                f"the last evaluation takes {self.last_images:,} of {whole:,} images, evenly spread, so that "
                f"{1 - LARGEST_SHARE:.0%} of the minutes are left; skewconv evaluate takes all"
            )
        return seconds[0] + each * min(self.last_images, attacked or whole)

    def _judge(self, what: str, images: int | None, *, quick: bool = False) -> Figures:
        def tick(done: int, total: int) -> None:
            self._display.work(what, done, total)
            if self._signals.received is not None:
                raise StopRequestedError(self._signals.received)

        self._display.work(what)
        options = {"images": images, "quick": quick, "device": self._device}
        return evaluate(self._model, self._parts.judged, self._config, **options, progress=tick)


def refuse_short_budget(plan: TimePlan, images: int) -> None:
    """Say at once that a budget is used up by what comes before and after training, and what would do.

    Args:
        plan: which knows its ending.
        images: of the last evaluation.
    """
    if plan.time_to_train() > 0:
        return
    # A third of the budget, at least, for steps.
    enough = math.ceil(15 * (plan.spent + plan.reserve) / 60) / 10
    raise ArgumentError(
        f"--minutes is {plan.seconds / 60:g}, which leaves no time to train: the start took {clock_time(plan.spent)}, "
        f"and the last evaluation, of {images:,} images, takes about {clock_time(plan.reserve)} here; "
        f"give --minutes {enough:g} or more, or --epochs"
    )
