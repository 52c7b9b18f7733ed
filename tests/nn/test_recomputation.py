"""Under torch.utils.checkpoint a forward pass is run twice: the second time it meets the same network."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from skewconv.models import LipConvnet
from tests.nn.rows import ROWS, built


def _gradients(model: nn.Module, x: Tensor, reentrant: bool | None) -> list[Tensor]:
    for _ in range(2):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.2 * torch.linspace(-1, 1, p.numel()).view_as(p))
        model.zero_grad()
        y = model(x) if reentrant is None else checkpoint(model, x, use_reentrant=reentrant)
        y.abs().sin().sum().backward()
    return [p.grad for p in model.parameters()] + [b.clone() for b in model.buffers()]


@pytest.mark.parametrize("reentrant", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("name", [n for n in ROWS if list(built(n)[0].parameters())])
def test_gradients_and_buffers_are_those_without_checkpoints(name, reentrant):
    layer, shape = built(name)
    twin, x = copy.deepcopy(layer).double(), torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    expected = _gradients(layer.double(), x, None)
    torch.testing.assert_close(_gradients(twin, x, reentrant), expected, atol=1e-10, rtol=1e-10)


def test_parts_of_a_network_that_are_run_twice_see_one_network():
    model = LipConvnet(5, in_channels=1, input_size=8, width=2).double()
    x, layers = torch.rand(2, 1, 8, 8, dtype=torch.float64), list(model.body)
    first, second = nn.Sequential(*layers[:4]), nn.Sequential(*layers[4:])
    expected = torch.autograd.grad(model(x).sin().sum(), list(model.parameters()))
    parts = (checkpoint(second, checkpoint(first, half, use_reentrant=False), use_reentrant=False) for half in (x, x))
    logits = torch.stack([model.head(part) for part in parts]).mean(0)
    found = torch.autograd.grad(logits.sin().sum(), list(model.parameters()))
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["SOC2d", "CPL2d"])
def test_the_estimate_goes_on_when_weights_are_edited_where_no_counter_sees_it(name):
    torch.manual_seed(0)
    layer, shape = built(name)
    x = torch.randn(2, *shape)
    weight = next(p for n, p in layer.named_parameters() if n in ("free", "weight"))
    layer(x)
    before = next(iter(layer.buffers())).clone()
    weight.data.copy_(torch.randn_like(weight))
    for _ in range(260):  # after a hundred passes that look alike the next one is a step all the same
        weight.data.mul_(1.001)
        layer(x)
    assert not torch.allclose(next(iter(layer.buffers())), before, atol=1e-3)
