"""BatchCentering: its definition in both modes, and networks with it certified, attacked, frozen and exported."""

import pytest
import torch
from torch import nn

import skewconv
from skewconv import export
from skewconv.errors import ArgumentError, ShapeError
from skewconv.nn import BatchCentering, MaxMin, OrthogonalLinear, SOC2d, lipschitz_upper_bound
from tests.certify.oracles import assert_sound_under_attack


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


def test_a_network_with_it_is_as_long_as_without_and_sound_under_attack(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(
        SOC2d(1, 4, 3, stride=2), BatchCentering(4), MaxMin(), nn.Flatten(), BatchCentering(64), OrthogonalLinear(64, 3)
    )
    images = torch.rand(16, 1, 8, 8)
    for _ in range(5):
        model(images)
    model.eval()
    assert lipschitz_upper_bound(model, (1, 8, 8)) <= 1 + 1e-12
    assert float(assert_sound_under_attack(model, images[:4]).max()) > 0
    torch.testing.assert_close(skewconv.freeze(model, (1, 8, 8))(images), model(images), atol=1e-5, rtol=0)
    export.onnx(model, tmp_path / "model.onnx", (1, 8, 8))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ShapeError, match=r"\(n, 3, ...\), got \(2, 4\)"):
        BatchCentering(3)(torch.zeros(2, 4))
    with pytest.raises(ArgumentError, match="momentum"):
        BatchCentering(3, momentum=1.5)
