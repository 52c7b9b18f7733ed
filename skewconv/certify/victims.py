"""What attacks climb and what judges them: the model as given, and the float64 program of its certificates."""

import copy
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from skewconv.certify.certifier import Certifier
from skewconv.errors import SkewconvError
from skewconv.frozen import freeze
from skewconv.models.input_check import any_values
from skewconv.nn.module_tools import unwrapped

Arithmetic: TypeAlias = Literal["model", "float64"]


class Float64Program(nn.Module):
    """Values by the very program that is certified, gradients through the float64 copy of the model.

    A model that cannot be certified has no program: its float64 copy gives the values too.

    >>> model = Float64Program(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2))
    >>> model(torch.rand(3, 1, 2, 2)).dtype
    torch.float64
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.exact = plain_copy(model).double()
        self.certifier: Certifier | None
        try:
            self.certifier = Certifier(model, shape)
        except SkewconvError:
            self.certifier = None

    def forward(self, x: Tensor) -> Tensor:
        """(n, *shape) -> (n, classes), float64."""
        x = x.double()
        if self.certifier is None or (torch.is_grad_enabled() and x.requires_grad):
            logits: Tensor = self.exact(x)
            return logits
        return self.certifier.logits(x).to(x.device)


class Counted(nn.Module):
    """A model that counts how often it is asked: one step for each image of each call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.steps = model, 0

    def forward(self, x: Tensor) -> Tensor:
        """What the model says."""
        self.steps += len(x)
        with any_values():
            logits: Tensor = self.model(x)
        return logits


def victim(model: nn.Module, shape: tuple[int, ...], arithmetic: Arithmetic) -> Counted:
    """The function to climb: in its own precision frozen where that can be done, which is fast, or in float64."""
    if arithmetic == "float64":
        return Counted(Float64Program(model, shape))
    try:
        return Counted(freeze(plain_copy(model), shape).model)
    except SkewconvError:
        return Counted(plain_copy(model))


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode without gradients in its weights."""
    return copy.deepcopy(unwrapped(model)).eval().requires_grad_(False)
