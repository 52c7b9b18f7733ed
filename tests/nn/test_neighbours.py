"""AOL, SLL and CPL: what their papers say of them, beyond what every layer is held to."""

import pytest
import torch
from torch import nn

from skewconv import nn as snn
from skewconv.ops import dense_matrix, norm_upper_bound
from skewconv.ops.convolution import residual_step
from skewconv.ops.gram_row_sums import gram_row_sums

RESIDUAL = [snn.SLL2d, snn.CPL2d]


def test_aol_divides_each_column_by_the_root_of_its_row_sum():
    layer = snn.AOL2d(3, 4, 3).double().eval()
    with torch.no_grad():
        layer.raw_weight.add_(0.3 * torch.randn_like(layer.raw_weight))
    literal = layer.raw_weight / gram_row_sums(layer.raw_weight).sqrt().view(1, -1, 1, 1)
    # What is stored is smaller by what the proof has to allow for.
    torch.testing.assert_close(layer.weight, literal, rtol=1e-8, atol=0)
    layer.train()
    torch.testing.assert_close(layer.weight, literal, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("c_in", "c_out", "stride"), [(3, 5, 1), (4, 2, 1), (2, 3, 2), (7, 3, 1), (1, 4, 2)])
def test_aol_begins_as_an_isometry_of_what_it_keeps(c_in, c_out, stride):
    layer = snn.AOL2d(c_in, c_out, 3, stride, bias=False).eval()
    matrix = dense_matrix(layer, (c_in, 4, 4), dtype=torch.float32).detach()
    torch.testing.assert_close(torch.linalg.svdvals(matrix), torch.ones(min(matrix.shape)), atol=1e-5, rtol=0)


def test_the_adjoint_of_aol_is_its_adjoint():
    for options in ({}, {"padding_mode": "circular"}, {"stride": 2}):
        layer = snn.AOL2d(2, 3, 3, **options).double().eval()
        x = torch.randn(2, 2, 6, 6, dtype=torch.float64)
        y = layer(x) - layer.bias.view(-1, 1, 1)
        z = torch.randn_like(y)
        torch.testing.assert_close((y * z).sum(), (x * layer.adjoint(z)).sum())


@pytest.mark.parametrize("kind", RESIDUAL)
def test_residual_layers_are_the_formula_of_their_papers(kind):
    layer = kind(3, 3, 3).double().eval()
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    hidden = torch.relu(nn.functional.conv2d(x, layer.weight, layer.bias, padding=1))
    scaled = hidden * (layer.scale.view(-1, 1, 1) if layer.scale.dim() else layer.scale)
    literal = x - 2 * nn.functional.conv_transpose2d(scaled, layer.weight, padding=1)
    torch.testing.assert_close(layer(x), literal)
    if kind is snn.CPL2d:
        assert float(layer.scale.detach()) == pytest.approx(1 / norm_upper_bound(layer.weight) ** 2, rel=1e-12)
    else:
        torch.testing.assert_close(layer.scale, 1 / gram_row_sums(layer.weight.transpose(0, 1)), rtol=1e-6, atol=0)


def test_gradients_of_cpl_in_evaluation_carry_the_scale():
    torch.manual_seed(0)
    layer = snn.CPL2d(2, 2, 3).double().eval()
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    layer(x).square().sum().backward()
    step = torch.randn_like(layer.weight)
    slope, sides = float((layer.weight.grad * step).sum()), []
    for change in (1e-5, -2e-5):
        with torch.no_grad():
            layer.weight.add_(change * step)
            sides.append(float(layer(x).square().sum()))
    # The proven norm is that of a grid, whose derivative is near to that of the power vector's.
    assert (sides[0] - sides[1]) / 2e-5 == pytest.approx(slope, rel=0.3)


def test_training_and_evaluation_nearly_agree():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    for kind in (snn.AOL2d, *RESIDUAL):
        layer = kind(3, 3, 3)
        with torch.no_grad():
            for _ in range(20):
                trained = layer(x)
            difference = (trained - layer.eval()(x)).norm() / trained.norm()
        assert float(difference) < (0.1 if kind is snn.CPL2d else 1e-5)


def test_residual_layers_keep_the_identity_where_relu_is_zero():
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(residual_step(x, torch.randn(5, 3, 3, 3), torch.rand(5), torch.full((5,), -1e6)), x)
    layer = snn.SLL2d(1, 6, 3, stride=2).eval()
    layer.bias.data.fill_(-1e6)
    y = layer(torch.ones(1, 1, 4, 4))
    assert bool((y[:, :4] == 1).all())
    assert bool((y[:, 4:] == 0).all())
