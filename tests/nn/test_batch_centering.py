"""BatchCentering: its definition in both modes."""

import pytest
import torch
from torch import nn

from skewconv.errors import ArgumentError, ShapeError
from skewconv.nn import BatchCentering


@pytest.mark.parametrize("size", [(), (5,), (4, 3), (2, 3, 2)])
def test_training_takes_the_mean_of_the_batch_and_evaluation_the_running_mean(size):
    layer = BatchCentering(3, momentum=0.25).double()
    nn.init.normal_(layer.bias)
    spread, running = (1, 3, *(1,) * len(size)), torch.zeros(3, dtype=torch.float64)
    for _ in range(4):
        x = 2 + torch.randn(6, 3, *size, dtype=torch.float64)
        mean = x.transpose(0, 1).flatten(1).mean(1)
        torch.testing.assert_close(layer(x), x - mean.view(spread) + layer.bias.view(spread))
        running = 0.75 * running + 0.25 * mean
    torch.testing.assert_close(layer.running_mean, running)
    torch.testing.assert_close(layer.eval()(x), x - running.view(spread) + layer.bias.view(spread))
    assert torch.autograd.gradcheck(layer.train(), (x[:2].clone().requires_grad_(),))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ShapeError, match=r"\(n, 3, ...\), got \(2, 4\)"):
        BatchCentering(3)(torch.zeros(2, 4))
    with pytest.raises(ArgumentError, match="momentum"):
        BatchCentering(3, momentum=1.5)
