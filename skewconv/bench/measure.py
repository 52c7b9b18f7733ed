"""Time and memory of pieces of work, side by side: one process, fixed threads, the best of several rounds."""

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def side_by_side(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 7,
    warmup: int = 2,
    threads: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Seconds of each round of every contestant; the fastest is the one that the machine disturbed least.

    Every contestant runs once in each round, so that other programs disturb all of them alike.

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
    return {name: tuple(values) for name, values in seconds.items()}


class _Watch(TorchDispatchMode):
    """The bytes of every storage made while active, until it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.peak = 0, 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in self._seen and key not in given:
                    self._seen.add(key)
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._freed, key, size)
        return result

    def _freed(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def peak_bytes(work: Callable[[], object]) -> int:
    """The largest number of bytes that tensors made by ``work`` held at one time.

    >>> import torch
    >>> peak_bytes(lambda: torch.zeros(1000).add(1).mul(2)) >= 8000
    True
    """
    with _Watch() as watch:
        work()
    return watch.peak
