"""What an engine is: a name, why it refuses a request, what a request costs it, and how it applies a polynomial."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.adjoint import apply_recurrence
from skewconv.ops.engines.application import Application
from skewconv.ops.engines.costs import HALF_PRECISION, Counts, Request
from skewconv.ops.engines.jacobian_products import JacobianProducts


class Arranged(NamedTuple):
    """How images become the states of an engine, its form of the filter, how it multiplies them, and the way back.

    With zero padding ``order`` and ``restore`` move numbers and change none, for any number of channels: each is the
    inverse of the other, and its adjoint.
    """

    order: Callable[[Tensor], Tensor]
    operator: Tensor
    products: JacobianProducts
    restore: Callable[[Tensor], Tensor]


class Engine(ABC):
    """One way to apply p(J). A new one is a file with a subclass and an instance, and a line in ``ENGINES``."""

    name: ClassVar[str]

    def refusal(self, geometry: Geometry, size: tuple[int, ...] | None) -> str:
        """Why it cannot serve images of this size (of any size: None), or an empty string."""
        return ""

    def reservation(self, request: Request) -> str:
        """Why a plan does not choose it for what it could serve, or an empty string."""
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
    def arrange(self, x: Tensor, weight: Tensor, task: Application) -> Arranged:
        """What its recurrence is run on.

        Args:
            x: the images, (batch, groups * inputs, *size), of a real dtype.
            weight: the filter, (m, m / groups, *kernel), of the same dtype.
            task: which polynomial, on which channels.
        """

    def apply(self, x: Tensor, weight: Tensor, task: Application) -> Tensor:
        """p(J) x, or p(-J) x: (batch, groups * inputs, *size) -> (batch, groups * outputs, *size)."""
        order, operator, products, restore = self.arrange(x, weight, task)
        return restore(apply_recurrence(order(x), operator, task.steps, products, recompute=task.recompute))
