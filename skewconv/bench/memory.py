"""The peak memory of a piece of work: the most that live tensors occupied while it ran."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Watch(TorchDispatchMode):
    """Counts the bytes of every storage born while active, until it dies."""

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
                if storage._cdata not in self._seen and storage._cdata not in given:
                    self._born(storage)
        return result

    def _born(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._died, key, size)

    def _died(self, key: int, size: int) -> None:
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
