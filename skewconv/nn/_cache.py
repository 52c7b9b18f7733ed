"""Values computed from a layer's parameters and settings, kept while both stay what they were."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
# Two hashes of the content, shape, dtype, device.
Fingerprint: TypeAlias = tuple[tuple[int, int], tuple[int, ...], torch.dtype, str]

_PLAIN = (bool, int, float, complex, str, bytes, tuple, torch.dtype)
_BLOCK = 4096
# So many words are multiplied at a time: they stay in the processor's cache, which is several times faster.
_CHUNK = 16 * _BLOCK


def fingerprint(*tensors: Tensor) -> tuple[Fingerprint, ...]:
    """Two sums_i word_i a_i mod 2^64 per tensor, over words of at most 32 bits and fixed, scrambled, odd a_i.

    It reads the content, because version counters miss edits through ``.data`` and storage addresses are reused. A
    change of one value changes it for certain. Two words differ by less than 2^32, so for scrambled a_i any other edit,
    signs and exponents included, cancels in one sum with probability about 2^-32 (multilinear hashing: Lemire and
    Kaser, "Strongly universal string hashing is fast", 2014), and in both with 2^-64. Words of 64 bits would not do:
    a sign is 2^63 there, and two of those cancel whatever the a_i.

    >>> import torch
    >>> x = torch.zeros(3)
    >>> before = fingerprint(x)
    >>> x.data[1] = 1.0
    >>> before == fingerprint(x)
    False
    """
    return tuple((_hash(t.detach()), tuple(t.shape), t.dtype, str(t.device)) for t in tensors)


def _hash(tensor: Tensor) -> tuple[int, int]:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    words = _words(real.resolve_neg())
    level = 0
    while words.numel() > _BLOCK:
        words, level = _words(_block_sums(words, level)), level + 1
    first, second = _block_sums(words, level)[0].tolist()
    return first, second


def _words(tensor: Tensor) -> Tensor:
    """The content as integers of 8, 16 or 32 bits; eight bytes are two words."""
    kind = {1: torch.int8, 2: torch.int16}.get(tensor.element_size(), torch.int32)
    return tensor.contiguous().view(-1).view(kind)


def _block_sums(words: Tensor, level: int) -> Tensor:
    """(blocks, 2): both hashes of each block of words, with other multipliers on each level."""
    one, other = _odd_numbers(level, words.device)
    sums = []
    for chunk in words.split(_CHUNK):
        # All but the last chunk are whole blocks, and the last block of that one may be shorter.
        whole = chunk.numel() // _BLOCK * _BLOCK
        for part in (chunk[:whole].view(whole // _BLOCK, _BLOCK), chunk[whole:].view(1, chunk.numel() - whole)):
            long, width = part.long(), part.shape[1]
            sums.append(torch.stack([(long * one[:width]).sum(1), (long * other[:width]).sum(1)], 1))
    return torch.cat(sums)


@lru_cache(maxsize=64)
def _odd_numbers(level: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Twice ``_BLOCK`` odd 64-bit integers for each level (the mixing steps of splitmix64, which need no generator)."""
    with torch.inference_mode(False):
        start = 2 * _BLOCK * level + 1
        x = torch.arange(start, start + 2 * _BLOCK, dtype=torch.int64, device=device) * -0x61C8864680B583EB
        x = (x ^ (x >> 30)) * -0x40A7B892E31B1A47
        x = (x ^ (x >> 27)) * -0x6B2FB644ECCEEE15
        one, other = ((x ^ (x >> 31)) | 1).split(_BLOCK)
        return one, other


def settings_of(layer: nn.Module) -> dict[str, Any]:
    """What a user can set on a layer besides its tensors and its mode: its attributes that are plain values."""
    return {
        name: value
        for name, value in vars(layer).items()
        if name != "training" and (value is None or isinstance(value, _PLAIN) or is_dataclass(value))
    }


class EvalCache(Generic[T]):
    """The few most recent values built from a layer; forgotten as soon as its tensors or settings change.

    What it returns is its own: whoever hands it on to a user hands on a copy. Copies and pickles of a module start with
    an empty cache: what it holds can always be built again.
    """

    def __init__(self, capacity: int = 4) -> None:
        self.capacity = capacity
        self._built_from: tuple[tuple[Fingerprint, ...], dict[str, Any]] = ((), {})
        self._values: dict[Hashable, T] = {}

    def get(self, layer: nn.Module, tensors: Sequence[Tensor], key: Hashable, build: Callable[[], T]) -> T:
        """The value for this key, from the cache or from ``build``, which runs without gradients.

        Args:
            layer: whose settings the value depends on.
            tensors: whose content it depends on.
            key: what else it depends on.
        """
        now = fingerprint(*tensors), settings_of(layer)
        if now != self._built_from:
            self._built_from, self._values = now, {}
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
