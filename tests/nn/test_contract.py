"""The contract of every layer and activation: it trains, keeps its proven bound, and survives copying and saving."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from skewconv import nn as snn
from skewconv.ops import dense_matrix
from tests.nn.rows import COMPLEX_ROWS, ROWS, built, of_kind, public_layers
from tests.nn.soc.test_contract import ROWS as SOC_ROWS


def test_every_layer_that_is_offered_has_a_row():
    assert {name.partition("-")[0] for name in ROWS | COMPLEX_ROWS} == public_layers()
    skew = {name for name in public_layers() if name.startswith(("SOC", "SUC"))}
    assert {row[0] for row in SOC_ROWS} == skew


def _trained(layer: nn.Module, shape: tuple[int, ...], steps: int = 10) -> nn.Module:
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


@pytest.mark.parametrize("name", ROWS)
def test_after_training_no_pair_and_no_gradient_is_stretched_beyond_the_proven_bound(name):
    layer, shape = built(name)
    _trained(layer, shape).double()
    bound = snn.lipschitz_upper_bound(layer, shape)
    x = torch.randn(64, *shape, dtype=torch.float64)
    for scale in (1e-4, 1e-1, 3.0):
        y = x + scale * torch.randn_like(x)
        ratio = (layer(x) - layer(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
        assert float(ratio.detach().max()) <= bound * (1 + 1e-9)
    if ROWS[name].kind != "bounded":
        assert bound <= 1.0
    x.requires_grad_()
    y = layer(x)
    cotangent = torch.randn_like(y)
    (grad,) = torch.autograd.grad(y, x, cotangent)
    ratio = grad.flatten(1).norm(dim=1) / cotangent.flatten(1).norm(dim=1)
    if ROWS[name].kind in ("orthogonal", "activation") and y[0].numel() <= x[0].numel():
        torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-5, rtol=0)
    else:
        assert float(ratio.max()) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("name", of_kind("orthogonal", "shrinking", "bounded"))
def test_linear_maps_have_singular_values_within_their_stated_gain(name):
    layer, shape = built(name)
    _trained(layer, shape)
    zero = layer(torch.zeros(1, *shape))
    matrix = dense_matrix(lambda x: layer(x) - zero, shape, dtype=torch.float32).detach().double().numpy()
    values = np.linalg.svd(matrix, compute_uv=False)
    if ROWS[name].kind == "orthogonal":
        assert np.abs(values - 1).max() <= 1e-5
    assert values.max() <= snn.lipschitz_upper_bound(layer, shape) + 2e-6
    for low, high in (layer.gain_bounds(), layer.gain_bounds(shape)):
        assert values.max() <= high + 2e-6
        assert values.min() >= low - 2e-6
        assert ROWS[name].kind == "bounded" or 1 - 1e-5 <= high <= 1.0


@pytest.mark.parametrize("name", ROWS)
def test_copies_and_saved_states_compute_the_same_bits(name):
    layer, shape = built(name)
    fresh = copy.deepcopy(layer)
    _trained(layer, shape, steps=3)
    x = torch.randn(2, *shape)
    # The same operations on the same values in the same process: nothing is left to another kernel.
    expected = layer(x)
    assert torch.equal(layer(x), expected)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(x), expected)
    fresh.eval()(x)
    fresh.load_state_dict(layer.state_dict(), strict=True)
    assert torch.equal(fresh(x), expected)


@pytest.mark.parametrize("name", [name for name in ROWS if name != "Normalize"])
def test_under_autocast_layers_return_its_dtype_as_pytorchs_own_do(name):
    layer, shape = built(name)
    for module in (layer, layer.eval()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            # What computes nothing but differences and order keeps the dtype that it is given.
            keeps = ROWS[name].kind == "activation" or name.startswith(("BatchC", "Invert"))
            x = torch.randn(2, *shape, dtype=torch.bfloat16 if keeps else torch.float32)
            assert module(x).dtype == torch.bfloat16
