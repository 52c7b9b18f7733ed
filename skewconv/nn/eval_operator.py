"""The operator of evaluation mode: proven from the values of parameters, and kept while these stay what they are."""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import is_dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from skewconv.ops.torch_modes import outside_transforms, refuse_export

T = TypeVar("T")
# The image size (h, w) that an operator belongs to; () where one serves all sizes.
Size: TypeAlias = tuple[int, ...]
# Hash of the content, shape, dtype, device.
Fingerprint: TypeAlias = tuple[bytes, tuple[int, ...], torch.dtype, str]

_PLAIN = (bool, int, float, complex, str, bytes, tuple, torch.dtype)


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """The precision in which an operator is computed from a parameter: its own, but no less than float32."""
    return torch.promote_types(tensor.dtype, torch.float32)


def at_precision(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in another precision, on the CPU if its device has no float64."""
    if dtype == torch.float64 and tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.to(dtype)


def fingerprint(*tensors: Tensor) -> tuple[Fingerprint, ...]:
    """SHA-256 of the content of each tensor: version counters miss edits through ``.data``, addresses are reused."""

    def digest(tensor: Tensor) -> bytes:
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
        return hashlib.sha256(plain.view(torch.uint8).cpu().numpy().data).digest()

    return tuple((digest(t), tuple(t.shape), t.dtype, str(t.device)) for t in tensors)


def _settings_of(layer: nn.Module) -> dict[str, Any]:
    public = {name: value for name, value in vars(layer).items() if name != "training" and not name.startswith("_")}
    return {k: v for k, v in public.items() if v is None or isinstance(v, _PLAIN) or is_dataclass(v)}


class EvalCache(Generic[T]):
    """The few most recent values built from a layer, until its tensors or settings change; copies start empty."""

    def __init__(self, capacity: int = 4) -> None:
        self.capacity = capacity
        self._built_from: tuple[tuple[Fingerprint, ...], dict[str, Any]] = ((), {})
        self._values: dict[Hashable, T] = {}

    def get(self, layer: nn.Module, tensors: Sequence[Tensor], key: Hashable, build: Callable[[], T]) -> T:
        """The value for this key, the layer's settings and these tensors, kept or by ``build`` without gradients."""
        now = fingerprint(*tensors), _settings_of(layer)
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


class ProvenOperator(NamedTuple):
    """An operator as stored, the scale it was built with, and the proven (min, max) of its singular values."""

    operator: Tensor
    scale: float
    gain: tuple[float, float]


class EvalOperator(nn.Module):
    """A layer that builds an operator (a filter, a matrix, a scale) from its parameters, and proves something of it."""

    def __init__(self) -> None:
        super().__init__()
        self._cache: EvalCache[Any] = EvalCache()

    @abstractmethod
    def _sources(self) -> list[Tensor]:
        """The parameters that the operator is built from."""

    @abstractmethod
    def _prove(self, sources: Sequence[Tensor], size: Size) -> Any:
        """What is proven, as a tuple whose first entry is the operator as stored."""

    @abstractmethod
    def _with_derivative(self, sources: Sequence[Tensor], proven: Any, size: Size) -> Tensor:
        """The operator of these proven values as a differentiable function of the sources."""

    def _proven(self, size: Size = ()) -> Any:
        sources = self._sources()
        with outside_transforms():
            return self._cache.get(self, sources, size, lambda: self._prove(sources, size))

    def _operator_in_eval(self, size: Size = ()) -> Tensor:
        """The proven operator, with its derivative where one is asked for."""
        refuse_export(type(self).__name__)
        proven, sources = self._proven(size), self._sources()
        if torch.is_grad_enabled() and any(s.requires_grad for s in sources):
            return self._with_derivative(sources, proven, size)
        operator: Tensor = proven[0]
        return operator
