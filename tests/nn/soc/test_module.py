"""SOC layers as modules of torch: dtypes, autocast, compilers, copies, devices."""

import copy

import pytest
import torch

from skewconv import nn as snn
from skewconv.ops import dense_matrix, norm_upper_bound

# Dtypes.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [False, True])
def test_half_precision_stays_close_to_single(dtype, training):
    layer, x = snn.SOC2d(6, 6, 3).train(training), torch.randn(2, 6, 8, 8)
    rounded = copy.deepcopy(layer).to(dtype)
    expected = layer(x)
    y = rounded(x.to(dtype))
    assert y.dtype == dtype
    # A dozen roundings of relative size u in a row.
    assert (y.float() - expected).norm() <= 12 * torch.finfo(dtype).eps * expected.norm()
    y.float().square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in rounded.parameters())


def test_half_precision_weights_are_normalised_with_their_rounding():
    layer = snn.SOC2d(8, 8, 3).to(torch.bfloat16)
    assert 0.9 < layer.gain_bounds()[0] <= layer.gain_bounds()[1] < 1.1
    layer.eval()
    assert layer.weight.dtype == torch.bfloat16
    bound = norm_upper_bound(layer.weight.detach(), "fantastic-four")
    assert bound <= layer.proven_norm_bound()
    assert layer.gain_bounds()[1] <= 1.0
    exact = copy.deepcopy(layer).double()
    values = torch.linalg.svdvals(dense_matrix(lambda x: exact(x) - exact(0 * x), (8, 3, 3)))
    assert values.max() <= exact.gain_bounds()[1] + 1e-12


@pytest.mark.parametrize("training", [False, True])
def test_autocast_keeps_the_norms_in_single_precision(training):
    layer, x = snn.SOC2d(6, 6, 3).train(training), torch.randn(2, 6, 8, 8, requires_grad=True)
    torch.nn.init.ones_(layer.bias)
    expected = copy.deepcopy(layer)(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        filter_inside = copy.deepcopy(layer).weight
        y = layer(x)
    # repeated: in evaluation autocast does not reach the filter
    assert torch.equal(filter_inside, copy.deepcopy(layer).weight) or training
    assert (filter_inside.dtype, y.dtype) == (torch.float32, torch.bfloat16)
    assert (y.float() - expected).norm() <= 12 * torch.finfo(torch.bfloat16).eps * expected.norm()
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32
    assert layer.free.grad.dtype == torch.float32


# Life as a module.


def test_unbatched_images_are_accepted_as_by_nn_conv():
    for name, size in (("SOC1d", (6,)), ("SOC2d", (4, 6)), ("SOC3d", (2, 4, 2)), ("SOCTranspose2d", (3, 3))):
        layer = getattr(snn, name)(2, 3, 3, stride=2).eval()
        x = torch.randn(4, 2, *size)
        torch.testing.assert_close(layer(x)[1], layer(x[1]), atol=1e-6, rtol=0)
        y = layer(x)
        torch.testing.assert_close(layer.adjoint(y)[1], layer.adjoint(y[1]), atol=1e-6, rtol=0)


def test_the_meta_device_and_to_empty():
    layer = snn.SOC2d(3, 3, 3, device="meta")
    assert layer.free.is_meta
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    values = torch.linalg.svdvals(dense_matrix(lambda x: layer(x) - layer(0 * x), (3, 3, 3), dtype=torch.float32))
    assert abs(values.max() - 1) < 0.15
    with torch.device("meta"):
        assert snn.SOC2d(3, 3, 3).centre.is_meta


def test_the_repr_tells_what_the_layer_does():
    text = repr(snn.SOC2d(3, 64, 3, stride=2, padding_mode="circular", bias=False))
    for part in ("SOC2d(3, 64", "kernel_size=(3, 3)", "stride=(2, 2)", "circular", "bias=False", "norm_bound=2.1"):
        assert part in text
    assert "in training isometric of degree 4, error <= 1.1e-01" in text
    assert "in evaluation chebyshev of degree 10" in text
    assert "in evaluation chebyshev of degree 10" in str(snn.SOC2d(4, 4, 3).eval()).split("(in")[0]
    words = "accurate=True, in training chebyshev of degree 10, error <= 1.6e-07)"
    assert str(snn.SOC2d(4, 4, 3, accurate=True)).endswith(words)
