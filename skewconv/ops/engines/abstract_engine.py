"""What an engine is: a name, why it refuses a request, what a request costs it, and how it applies a polynomial."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.application import Application
from skewconv.ops.engines.costs import HALF_PRECISION, Counts, Request


class Engine(ABC):
    """One way to apply p(J). A new one is a file with a subclass and an instance, and a line in ``ENGINES``."""

    name: ClassVar[str]

    def refusal(self, geometry: Geometry, size: tuple[int, ...] | None) -> str:
        """Why it cannot serve images of this size (of any size: None), or an empty string."""
        return ""

    def preference(self, request: Request) -> str:
        """Why it is taken without a look at the costs, or an empty string; the first in the table is asked first."""
        return ""

    @abstractmethod
    def cost(self, request: Request) -> Counts:
        """What it would do for a request that it does not refuse."""

    def memory_format(self, request: Request) -> str:
        """How it stores the images: "contiguous" or "channels_last"."""
        return "contiguous"

    def working_dtype(self, dtype: torch.dtype, device: str) -> torch.dtype:
        """What it computes in: half precision would be lost in sums over taps or frequencies."""
        return torch.float32 if dtype in HALF_PRECISION else dtype

    @abstractmethod
    def apply(self, x: Tensor, weight: Tensor, task: Application) -> Tensor:
        """p(J) x, or p(-J) x: (batch, groups * inputs, *size) -> (batch, groups * outputs, *size), of a real dtype.

        Args:
            weight: (m, m / groups, *kernel), the dtype of x.
            task: which polynomial, on which channels.
        """
