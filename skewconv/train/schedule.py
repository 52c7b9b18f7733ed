"""Learning rates as functions of the share of the run that is done, so that a planned run always completes its own."""

import math
from collections.abc import Callable, Mapping

from skewconv.config import OptimConfig


def factor(config: OptimConfig, done: float) -> float:
    """What the highest rate is multiplied by when the share `done`, from 0 to 1, of the run lies behind.

    >>> paper = OptimConfig(schedule="steps", milestones=(0.25, 0.75), drop=0.1)
    >>> [round(factor(paper, epoch / 200), 3) for epoch in (0, 49, 50, 149, 150, 199)]
    [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    """
    return _SCHEDULES[config.schedule](config, min(max(done, 0.0), 1.0))


def _steps(config: OptimConfig, done: float) -> float:
    # Multiples such as 50/200 are not exact in binary; the tolerance is far below a step of any run.
    return config.drop ** sum(done >= milestone - 1e-12 for milestone in config.milestones)


def _one_cycle(config: OptimConfig, done: float) -> float:
    return _warm(config, done) * (1 - _after_warmup(config, done))


def _cosine(config: OptimConfig, done: float) -> float:
    return _warm(config, done) * (1 + math.cos(math.pi * _after_warmup(config, done))) / 2


def _constant(config: OptimConfig, done: float) -> float:
    return 1.0


def _warm(config: OptimConfig, done: float) -> float:
    """From a twentieth up: the first step must move the weights, or it is lost."""
    return 1.0 if done >= config.warmup else 0.05 + 0.95 * done / config.warmup


def _after_warmup(config: OptimConfig, done: float) -> float:
    return max(0.0, (done - config.warmup) / (1 - config.warmup))


_SCHEDULES: Mapping[str, Callable[[OptimConfig, float], float]] = {
    "steps": _steps,
    "one-cycle": _one_cycle,
    "cosine": _cosine,
    "constant": _constant,
}
