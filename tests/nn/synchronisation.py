"""Counts the moments at which the host would have to wait for a GPU."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: methods that hand values to the host
METHODS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")


class _WatchCopies(TorchDispatchMode):
    def __init__(self, found: list[str], pinned: list[Tensor]) -> None:
        super().__init__()
        self.found, self.pinned = found, pinned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = (kwargs or {}).get("device")
        if func._schema.name == "aten::_to_copy" and args[0].is_cpu and device is not None and device.type != "cpu":
            known = any(args[0].data_ptr() == each.data_ptr() for each in self.pinned)
            if not known or not kwargs.get("non_blocking"):
                self.found.append(f"copy at {_place()}")
        return func(*args, **(kwargs or {}))


def _place() -> str:
    frames = [f for f in traceback.extract_stack() if "/skewconv/" in f.filename.replace("\\", "/")]
    return f"{frames[-1].filename.rpartition('skewconv/')[2]}:{frames[-1].lineno}" if frames else "elsewhere"


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What would make the host wait for the device inside the block, one line each."""
    found: list[str] = []
    with monkeypatch.context() as patch:
        for name in METHODS:
            method = getattr(Tensor, name)

            def noted(self: Tensor, *arguments: Any, name: str = name, method: Any = method, **options: Any) -> Any:
                found.append(f"{name} at {_place()}")
                return method(self, *arguments, **options)

            patch.setattr(Tensor, name, noted)
        yield found


@contextmanager
def watching_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Copies from the host to another device that block the host: from pageable memory, or without ``non_blocking``."""
    found: list[str] = []
    pinned: list[Tensor] = []

    def pin(self: Tensor) -> Tensor:
        pinned.append(self.clone())
        return pinned[-1]

    with monkeypatch.context() as patch, _WatchCopies(found, pinned):
        # Pinning needs a driver; the watch has to know only which copies start from pinned memory.
        patch.setattr(Tensor, "pin_memory", pin)
        yield found
