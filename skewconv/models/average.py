"""The average of several networks, certified as one."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from skewconv.errors import ArgumentError
from skewconv.nn.bounds import output_shape
from skewconv.nn.lowering import sequence
from skewconv.nn.module_tools import first_tensor
from skewconv.nn.primitives import ResidualSum, linear_module


class Average(nn.Module):
    """The mean of the logits of several networks: its Lipschitz constant is at most the mean of theirs.

    >>> from skewconv.models import LipConvnet
    >>> from skewconv.nn import lipschitz_upper_bound
    >>> networks = [LipConvnet(5, in_channels=1, input_size=8, width=4) for _ in range(3)]
    >>> lipschitz_upper_bound(Average(networks), (1, 8, 8)) * 0.2507 < 1.00001
    True

    Args:
        models: take the same inputs, and make logits for the same classes.
    """

    def __init__(self, models: Iterable[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        if not len(self.models):
            raise ArgumentError("an average is of at least one network, got none")

    def forward(self, x: Tensor) -> Tensor:
        """(batch, *input) -> (batch, classes)."""
        logits = torch.stack([model(x) for model in self.models])
        return logits.sum(0) * (1 / len(self.models))

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> nn.Module:
        """The sum of the networks, then a multiple of the identity."""
        total, *others = self.models
        for model in others:
            total = ResidualSum(nn.Identity(), model, total)
        (classes,) = output_shape(self.models[0], input_shape)
        like = first_tensor(self)
        share = torch.eye(classes, dtype=like.dtype, device=like.device) * (1 / len(self.models))
        return sequence(sum=total, mean=linear_module(share))
