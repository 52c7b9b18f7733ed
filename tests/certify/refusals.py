"""Small models, and what it means that one is refused."""

import pytest
import torch
from torch import nn

from skewconv.certify import radii
from skewconv.errors import UnboundedModuleError
from skewconv.models import LipConvnet

SHAPE = (1, 8, 8)


def network() -> LipConvnet:
    return LipConvnet(5, in_channels=1, input_size=8, width=4)


def linear(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *between, nn.Linear(16, 3))


def assert_refused(model: nn.Module, reason: str, shape: tuple[int, ...] = SHAPE) -> None:
    with pytest.raises(UnboundedModuleError, match=reason):
        radii(model, torch.rand(2, *shape), torch.tensor([0, 1]))
