"""The forms that a frozen layer may take, between which speed and size decide."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from skewconv.nn.frozen_layers.base import FrozenLayer

Form: TypeAlias = Literal["matrix", "frequencies", "convolution", "chain"]


@dataclass(frozen=True)
class FrozenChoice:
    """One form of a layer, which is only built if it is chosen.

    Args:
        form: "matrix" (one product for everything), "frequencies" (one matrix each), "convolution" (one with a larger
            kernel) or "chain" (several with the layer's own filter).
        numbers: how many it stores, at most.
        cost: multiply-adds of one image, those of matrix products counted by the time that they take.
        build: makes it.
    """

    form: Form
    numbers: int
    cost: float
    build: Callable[[], FrozenLayer]
