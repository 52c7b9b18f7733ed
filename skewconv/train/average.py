"""An average of the weights over the steps of a run: what is judged and kept in their place."""

import copy

import torch
from torch import nn

# Early on the average reaches back over a ninth of the steps made so far, so that the first weights are soon forgotten.
_WARM_STEPS = 9


class WeightAverage:
    """An exponential moving average of the weights of a network.

    Attributes:
        model: a network of the same build with averaged parameters; its buffers are those of the network itself.

    Args:
        model: the network that is trained.
        decay: the share of the average that a step leaves, once many steps are made.
        steps: how many were made before.
    """

    def __init__(self, model: nn.Module, decay: float, steps: int = 0) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self._decay, self._steps = decay, steps

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights after a step."""
        self._steps += 1
        decay = min(self._decay, self._steps / (_WARM_STEPS + self._steps))
        torch._foreach_lerp_(list(self.model.parameters()), [p.detach() for p in model.parameters()], 1 - decay)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)
