"""Power iteration on vectors that a layer keeps: one step for every change of the weights.

Activation checkpointing repeats a forward pass in the backward pass, accumulated gradients share one step of the
optimizer, an attack looks at the network that is trained: while the weights stay as they are, so must the estimate of
their norm, although each pass could improve it by a step.
"""

from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor, nn

from skewconv.ops.torch_modes import tracing

# Of each tensor its address, and how often it was written to.
WriteState: TypeAlias = tuple[tuple[int, int], ...]
# Edits through `.data` change no counter: after this many passes that look alike the next one is a step all the same.
_MOST_REPEATS = 100


class LastStep:
    """The vectors that the last power step began with, and the state of weights and vectors after it.

    A copy or a pickle starts empty: addresses and counters mean nothing there.
    """

    def __init__(self) -> None:
        self._began_with: list[Tensor] = []
        self._after: WriteState | None = None
        self._repeats = 0

    def repeated(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The vectors to begin with again, if no weight or vector was written to since the last step; else None.

        Args:
            tensors: the weights and the vectors.
        """
        if self._after is None or self._repeats >= _MOST_REPEATS or _write_state(tensors) != self._after:
            return None
        self._repeats += 1
        return self._began_with

    def record(self, began_with: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        """Remember a step, after its vectors were stored."""
        self._after, self._repeats = _write_state(tensors), 0
        self._began_with = [] if self._after is None else list(began_with)

    def __reduce__(self) -> tuple[type["LastStep"], tuple[()]]:
        return type(self), ()


def _write_state(tensors: Sequence[Tensor]) -> WriteState | None:
    """Addresses and write counters; None where they are unknown."""
    if tracing() or any(type(t) not in (Tensor, nn.Parameter) or t.is_inference() for t in tensors):
        return None
    return tuple((t.data_ptr(), t._version) for t in tensors)
