"""The contract of every layer and activation: it trains, keeps its proven bound, and survives copying and saving.

Skew orthogonal convolutions have a longer table of their own in test_soc_contract.py.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from skewconv import nn as snn
from skewconv.ops import dense_matrix

# (layer, shape of one input, kind): orthogonal maps have singular values of one, activations a Jacobian that has,
# others are only bounded.
ROWS = {
    "SOC1d": (lambda: snn.SOC1d(3, 4, 3), (3, 6), "orthogonal"),
    "SOC2d": (lambda: snn.SOC2d(3, 3, 3), (3, 4, 4), "orthogonal"),
    "SOC3d": (lambda: snn.SOC3d(2, 2, 3), (2, 3, 2, 2), "orthogonal"),
    "SOC2d-dense": (lambda: snn.SOC2d(3, 3, 3, engine="dense"), (3, 4, 4), "orthogonal"),
    "SOC2d-series": (lambda: snn.SOC2d(3, 3, 3, engine="series"), (3, 4, 4), "orthogonal"),
    "SOC2d-spectral": (
        lambda: snn.SOC2d(3, 3, 3, engine="spectral", padding_mode="circular"),
        (3, 4, 4),
        "orthogonal",
    ),
    "SOCTranspose2d": (lambda: snn.SOCTranspose2d(4, 1, 3, stride=2), (4, 2, 3), "orthogonal"),
    "BCOP2d": (lambda: snn.BCOP2d(3, 3, 3), (3, 4, 4), "orthogonal"),
    "BCOP2d-even": (lambda: snn.BCOP2d(4, 4, 2), (4, 4, 4), "orthogonal"),
    "BCOP2d-wider": (lambda: snn.BCOP2d(2, 4, 3), (2, 4, 4), "orthogonal"),
    "BCOP2d-narrower": (lambda: snn.BCOP2d(4, 2, 3), (4, 4, 4), "orthogonal"),
    "BCOP2d-stride": (lambda: snn.BCOP2d(1, 4, 3, stride=2), (1, 6, 6), "orthogonal"),
    "Cayley2d": (lambda: snn.Cayley2d(3, 3, 3), (3, 4, 4), "orthogonal"),
    "Cayley2d-wider": (lambda: snn.Cayley2d(2, 4, 3), (2, 4, 5), "orthogonal"),
    "Cayley2d-narrower": (lambda: snn.Cayley2d(4, 2, 3), (4, 5, 4), "orthogonal"),
    "Cayley2d-stride": (lambda: snn.Cayley2d(1, 4, 3, stride=2), (1, 6, 6), "orthogonal"),
    "OrthogonalLinear": (lambda: snn.OrthogonalLinear(6, 6), (6,), "orthogonal"),
    "OrthogonalLinear-down": (lambda: snn.OrthogonalLinear(40, 3), (40,), "orthogonal"),
    "OrthogonalLinear-up": (lambda: snn.OrthogonalLinear(3, 40), (3,), "orthogonal"),
    "NormalizedLinear": (lambda: snn.NormalizedLinear(6, 4), (6,), "bounded"),
    "InvertibleDownsample": (lambda: snn.InvertibleDownsample(2), (2, 4, 4), "orthogonal"),
    "Normalize": (lambda: snn.Normalize((0.4, 0.5), (0.2, 0.3)), (2, 3, 3), "bounded"),
    "MaxMin": (lambda: snn.MaxMin(), (4, 3, 3), "activation"),
    "GroupSort": (lambda: snn.GroupSort(2), (4, 3, 3), "activation"),
    "GroupSort-full": (lambda: snn.GroupSort(None), (5, 3, 3), "activation"),
    "Householder-1": (lambda: snn.Householder(4, order=1), (4, 3, 3), "activation"),
    "Householder-2": (lambda: snn.Householder(4, order=2), (4, 3, 3), "activation"),
}


@pytest.fixture(params=ROWS)
def row(request):
    build, shape, kind = ROWS[request.param]
    torch.manual_seed(0)
    return build(), shape, kind


def _trained(layer: nn.Module, shape: tuple[int, ...], steps: int = 20) -> nn.Module:
    x = torch.randn(4, *shape)
    target = torch.randn_like(layer(x))
    parameters = list(layer.parameters())
    if parameters:
        before = [p.detach().clone() for p in parameters]
        optimiser = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        for _ in range(steps):
            optimiser.zero_grad()
            (layer(x) - target).square().mean().backward()
            optimiser.step()
        assert any(not torch.equal(p, q) for p, q in zip(parameters, before, strict=True))
    return layer.eval()


def test_after_training_no_pair_is_stretched_beyond_the_proven_bound(row):
    layer, shape, kind = row
    _trained(layer, shape).double()
    bound = snn.lipschitz_upper_bound(layer, shape)
    x = torch.randn(64, *shape, dtype=torch.float64)
    for scale in (1e-4, 1e-1, 3.0):
        y = x + scale * torch.randn_like(x)
        ratio = (layer(x) - layer(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
        assert float(ratio.detach().max()) <= bound * (1 + 1e-9)
    if kind != "bounded":
        assert bound <= 1.0


def test_orthogonal_maps_have_singular_values_of_one_within_their_stated_gain(row):
    layer, shape, kind = row
    _trained(layer, shape)
    zero = layer(torch.zeros(1, *shape))
    matrix = dense_matrix(lambda x: layer(x) - zero, shape, dtype=torch.float32).detach().double().numpy()
    values = np.linalg.svd(matrix, compute_uv=False)
    if kind == "orthogonal":
        assert np.abs(values - 1).max() <= 1e-5
    if kind != "activation":
        assert values.max() <= snn.lipschitz_upper_bound(layer, shape) + 2e-6
    if isinstance(layer, snn.Cayley2d):
        low, high = layer.gain_bounds(shape)
    elif hasattr(layer, "gain_bounds"):
        low, high = layer.gain_bounds()
    else:
        return
    assert values.max() <= high + 2e-6
    assert values.min() >= low - 2e-6
    assert 1 - 1e-5 <= high <= 1.0


def test_activations_preserve_gradient_norms(row):
    layer, shape, kind = row
    _trained(layer, shape).double()
    if kind == "bounded":
        return
    x = torch.randn(8, *shape, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    cotangent = torch.randn_like(y)
    (grad,) = torch.autograd.grad(y, x, cotangent)
    ratio = grad.flatten(1).norm(dim=1) / cotangent.flatten(1).norm(dim=1)
    if y[0].numel() <= x[0].numel():
        torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-5, rtol=0)
    else:
        assert float(ratio.max()) <= 1 + 1e-9


def test_copies_and_saved_states_compute_the_same_bits(row):
    layer, shape, _ = row
    fresh = copy.deepcopy(layer)
    _trained(layer, shape, steps=3)
    x = torch.randn(2, *shape)
    expected = layer(x)
    # All of these are repeated computations.
    assert torch.equal(layer(x), expected)
    assert torch.equal(copy.deepcopy(layer)(x), expected)
    fresh.eval()(x)
    fresh.load_state_dict(layer.state_dict(), strict=True)
    assert torch.equal(fresh(x), expected)
