"""What an engine is: a name, what it refuses, where it is the best choice, and how it arranges images and filter."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.recurrence import ChannelWidths, JacobianProducts

HALF_PRECISION = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Request:
    """p(J) or p(-J) on some images: all that the choice of an engine depends on, without taps out of reach."""

    batch: int
    size: tuple[int, ...]
    geometry: Geometry
    widths: ChannelWidths
    degree: int
    dtype: torch.dtype
    device: str
    truncation_error: float = 0.0
    #: True where oneDNN, which convolves, multiplies faster than MKL
    onednn: bool = False

    @property
    def pixels(self) -> int:
        return math.prod(self.size)


class Arranged(NamedTuple):
    """Images as states, the filter as an operator for each of them, how the two are multiplied, and the way back."""

    states: Sequence[Tensor]
    operators: Sequence[Tensor]
    products: Sequence[JacobianProducts]
    restore: Callable[..., Tensor]


class Engine(ABC):
    """One way to apply p(J). A new one is a file with a subclass and an instance, and its place in ``ENGINES``."""

    name: ClassVar[str]

    def refusal(self, geometry: Geometry, size: tuple[int, ...] | None) -> str:
        """Why it cannot serve images of this size (of any size: None), or an empty string."""
        return ""

    def advantage(self, request: Request) -> str:
        """Why a plan takes it for a request that it does not refuse, or an empty string; on processors, in float32."""
        return ""

    def working_dtype(self, request: Request) -> torch.dtype:
        """What it computes in: half precision would be lost in sums over taps or frequencies."""
        return torch.float32 if request.dtype in HALF_PRECISION else request.dtype

    @abstractmethod
    def arrange(self, x: Tensor, weight: Tensor, request: Request) -> Arranged:
        """What its recurrence is run on, for real images (batch, groups * inputs, *size) and the filter."""
