"""The margin of a prediction."""

import math

from torch import Tensor


def margin_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The right logit less the largest other one: (n, classes), (n,) -> (n,), negative where the answer is wrong.

    >>> import torch
    >>> margin_of(torch.tensor([[3.0, 1.0, 0.0], [1.0, 4.0, 2.0]]), torch.tensor([0, 2]))
    tensor([ 2., -2.])
    """
    right = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -math.inf).amax(1)
    return right[:, 0] - others
