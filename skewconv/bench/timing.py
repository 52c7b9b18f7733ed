"""Side by side timing: one process, fixed threads, contestants in turn, the best of several rounds."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds of each round of one contestant."""

    rounds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The fastest round: the one the machine disturbed least."""
        return min(self.rounds)


def side_by_side(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 7,
    warmup: int = 2,
    threads: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Run every contestant once in each round, so that what disturbs the machine disturbs all of them.

    >>> sorted(side_by_side({"a": lambda: None, "b": lambda: None}, rounds=2))
    ['a', 'b']
    """
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for index in range(warmup + rounds):
            for name, run in contestants.items():
                start = clock()
                run()
                if index >= warmup:
                    seconds[name].append(clock() - start)
    finally:
        torch.set_num_threads(before)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def matrix_product_speed(size: int = 2048, rounds: int = 5) -> float:
    """Multiply-adds per second of a float32 matrix product here: what no layer can beat."""
    a = torch.randn(size, size)
    best = side_by_side({"product": lambda: a @ a}, rounds=rounds)["product"].best
    return size**3 / best
