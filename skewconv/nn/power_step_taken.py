"""One power step for every change of the weights: a forward pass that is repeated meets the same estimate.

Activation checkpointing repeats a forward pass in the backward pass, accumulated gradients share one step of the
optimiser, an attack looks at the network that is trained: while the weights stay as they are, so must the estimate of
their norm, although each pass would like to improve it by a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

from skewconv.ops.torch_modes import tracing

# Of each tensor where it is, and how often it was written to.
WriteState: TypeAlias = tuple[tuple[int, int], ...]
# Unit vectors that one computation makes twice differ by less; those of other weights by more, sooner or later.
_SAME_VECTORS = 1e-5


@dataclass(frozen=True)
class PowerStepTaken:
    """The vectors that the last power step began with, and the state of weights and vectors after it."""

    began_with: list[Tensor]
    state: WriteState


class LastStep:
    """Holds the last step taken, if it is known; a copy or a pickle of it starts empty.

    Addresses and version counters mean nothing in a copy.
    """

    def __init__(self) -> None:
        self.taken: PowerStepTaken | None = None

    def __reduce__(self) -> tuple[type["LastStep"], tuple[()]]:
        return type(self), ()


def write_state(tensors: Sequence[Tensor]) -> WriteState | None:
    """Where tensors are, and how often they were written to; None where that cannot be known."""
    if tracing() or any(type(t) not in (Tensor, nn.Parameter) or t.is_inference() for t in tensors):
        return None
    return tuple((t.data_ptr(), t._version) for t in tensors)


def are_same(vectors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether a power step led where it led before; edits through ``.data``, which no counter sees, lead elsewhere."""
    return all(float((a - b.to(a)).abs().max()) <= _SAME_VECTORS for a, b in zip(vectors, others, strict=True))
