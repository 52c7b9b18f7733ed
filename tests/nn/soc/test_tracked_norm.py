"""The polynomial of training follows an estimate of the norm that the filter really has."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from skewconv.nn import SOC2d, SUC1d, power_iteration
from skewconv.ops import dense_jacobian, norm_estimate
from tests.nn.synchronisation import watching


def layer_and_input(**options) -> tuple[SOC2d, Tensor]:
    torch.manual_seed(0)
    return SOC2d(16, 16, 3, **options), torch.randn(2, 16, 8, 8)


def change(layer: SOC2d, size: float = 0.01) -> None:
    """A step in a fixed direction, as an optimiser would make it."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.linspace(-size, size, parameter.numel()).view_as(parameter))


def test_the_interval_holds_the_norm_and_takes_fewer_products():
    layer, x = layer_and_input()
    loose = layer.polynomial(training=True)
    layer(x)
    now = layer.polynomial(training=True)
    weight = layer.weight.detach()
    assert norm_estimate(weight, 8) <= now.norm_bound < 1.2 * norm_estimate(weight, 8, "circular")
    assert now.degree < loose.degree
    # Where the norm is what the interval says, so is the error.
    exact = torch.linalg.matrix_exp(dense_jacobian(weight.double(), 4))
    with torch.no_grad():
        found = layer.double().linear(torch.eye(exact.shape[0], dtype=torch.float64).view(-1, 16, 4, 4)).flatten(1).T
    assert float(torch.linalg.matrix_norm(found - exact, 2)) <= now.truncation_error + 1e-6


def test_evaluation_does_not_know_of_the_estimate():
    layer, x = layer_and_input()
    layer(x)
    twin = copy.deepcopy(layer)
    twin.tracked_norm.interval = 0.1
    assert torch.equal(layer.eval()(x), twin.eval()(x))  # the same filter and the same polynomial
    assert layer.gain_bounds() == twin.gain_bounds()


def test_a_complex_filter_is_followed_too():
    layer = SUC1d(3, 3, 3, norm="tracked")
    layer(torch.randn(1, 3, 8, dtype=torch.complex64))
    interval = layer.polynomial(training=True).norm_bound
    assert norm_estimate(layer.weight.detach(), 8, "circular") <= interval <= layer.proven_norm_bound()


def test_the_host_waits_once_in_many_passes(monkeypatch):
    layer, x = layer_and_input()
    for _ in range(power_iteration._PASSES_AN_INTERVAL + 1):
        change(layer, 1e-3)
        layer(x)
    with watching(monkeypatch) as found:
        for _ in range(power_iteration._PASSES_AN_INTERVAL - 1):
            change(layer, 1e-3)
            layer(x)
    assert [line for line in found if "skewconv/nn/" in line] == []
    change(layer)
    with watching(monkeypatch) as found:
        layer(x)
    assert [line.split()[0] for line in found if line.startswith("__")] == ["__float__"]


def test_the_interval_follows_a_filter_that_changes():
    layer, x = layer_and_input()
    layer(x)
    before = layer.tracked_norm.interval
    with torch.no_grad():
        layer.free.zero_()  # one tap alone: its norm is a third of the bound, 0.7, once the scale has settled
    for _ in range(12):
        layer.tracked_norm.passes = power_iteration._PASSES_AN_INTERVAL
        change(layer, 0.0)
        layer(x)
    assert 0.7 <= layer.tracked_norm.interval < 0.9 < before


def test_a_resumed_layer_goes_on_to_the_bit():
    layer, x = layer_and_input()
    layer(x)
    change(layer)
    layer(x)
    twin = SOC2d(16, 16, 3, norm="tracked")
    twin.load_state_dict(copy.deepcopy(layer.state_dict()))
    assert (twin.tracked_norm.interval, twin.tracked_norm.passes) == (layer.tracked_norm.interval, 2)
    for _ in range(6):
        change(layer)
        change(twin)
        assert torch.equal(layer(x), twin(x))  # the same operations on the same numbers
    assert torch.equal(layer.tracked_norm.vector, twin.tracked_norm.vector)


def test_weights_of_a_layer_that_did_not_follow_its_norm_are_taken():
    plain, (layer, x) = SOC2d(16, 16, 3, norm="bound"), layer_and_input()
    layer.load_state_dict(plain.state_dict())
    layer(x)
    assert math.isfinite(layer.tracked_norm.interval)


def test_a_norm_that_no_polynomial_asks_for_is_not_followed():
    assert SOC2d(2, 2, 1).tracked_norm is None
    assert SOC2d(2, 2, 3, accurate=True).tracked_norm is None
    assert SOC2d(2, 2, 3, series="taylor", train_degree=5).tracked_norm is None


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("fused", [False, True])
def test_every_step_of_an_optimizer_is_followed_by_one_of_the_power_iteration(kind: Any, fused: bool) -> None:
    # Fused optimizers write to parameters without counting it.
    layer = SOC2d(3, 3, 3)
    optimizer, x = kind(layer.parameters(), lr=0.1, fused=fused), torch.randn(2, 3, 4, 4)
    start = layer.u1.clone()
    for step in range(3):
        assert int(layer.power_steps) == step
        torch.testing.assert_close(layer(x), layer(x), atol=0, rtol=0)
        layer(x).square().sum().backward()
        optimizer.step()
    assert int(layer.power_steps) == 3
    assert not torch.equal(layer.u1, start)
