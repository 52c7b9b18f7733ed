"""What a flow asks of SOC layers, in training as in evaluation: gain, inverse, determinant, against dense matrices."""

import math

import numpy as np
import pytest
import torch

from skewconv import nn as snn
from skewconv.errors import NotInvertibleError
from skewconv.ops import dense_matrix, polynomial

# A layer between equally many entries, and the shape of its inputs.
ROWS = {
    "zeros": (lambda **o: snn.SOC2d(6, 6, 3, dtype=torch.float64, **o), (6, 4, 3)),
    "circular": (lambda **o: snn.SOC2d(4, 4, 3, dtype=torch.float64, padding_mode="circular", **o), (4, 4, 3)),
    "groups and dilation": (
        lambda **o: snn.SOC2d(4, 4, 3, dtype=torch.float64, padding_mode="circular", groups=2, dilation=2, **o),
        (4, 5, 6),
    ),
    "stride": (lambda **o: snn.SOC2d(1, 4, 3, 2, dtype=torch.float64, **o), (1, 6, 4)),
    "transposed": (lambda **o: snn.SOCTranspose1d(4, 2, 3, 2, dtype=torch.float64, **o), (4, 5)),
    "complex": (lambda **o: snn.SUC1d(3, 3, 3, dtype=torch.complex128, padding_mode="circular", **o), (3, 5)),
    "three axes": (lambda **o: snn.SOC3d(2, 2, 3, dtype=torch.float64, **o), (2, 2, 3, 3)),
}


@pytest.fixture(params=ROWS)
def row(request):
    torch.manual_seed(0)
    return ROWS[request.param]


def _matrix(layer, shape):
    with torch.no_grad():
        return dense_matrix(layer.linear, shape, dtype=layer.filter_dtype).numpy()


@pytest.mark.parametrize("accurate", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_gain_inverse_and_determinant_are_those_of_the_present_mode(row, accurate, training):
    build, shape = row
    layer = build(accurate=accurate).train(training)
    x = torch.randn(2, *shape, dtype=layer.filter_dtype)
    y = layer(x)
    error = (layer.inverse(y) - x).norm() / x.norm()
    assert error <= 3 * layer.polynomial().truncation_error
    matrix = _matrix(layer, shape)
    (low, high), sigma = layer.gain_bounds(), np.linalg.svd(matrix, compute_uv=False)
    assert low - 1e-12 <= sigma.min()
    assert sigma.max() <= high + 1e-12
    if accurate or not training:
        assert low > 1 - 1e-6
    measured = np.linalg.slogdet(matrix)[1]
    assert math.prod(shape) * math.log(low) - 1e-11 <= measured <= math.prod(shape) * math.log(high) + 1e-11


def test_a_polynomial_too_coarse_for_an_inverse_says_so():
    layer = snn.SOC2d(4, 4, 3, train_series="chebyshev", train_degree=1, norm="bound", norm_bound=2.4)
    y = layer(torch.randn(1, 4, 4, 4))
    with pytest.raises(NotInvertibleError, match=r"accurate=True.*\.eval"):
        layer.inverse(y)
    assert layer.eval().inverse(y).shape == y.shape


def test_the_inverse_has_gradients_in_training():
    layer = snn.SOC1d(2, 2, 3, dtype=torch.float64)
    y = torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer.inverse, (y,), atol=1e-5)
    layer.inverse(y).square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_a_tracked_norm_is_inverted_with_the_polynomial_that_follows_it():
    torch.manual_seed(0)
    layer = snn.SOC2d(4, 4, 3, dtype=torch.float64, norm="tracked")
    x, optimizer = torch.randn(2, 4, 5, 5, dtype=torch.float64), torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(4):
        layer(x).sin().sum().backward()
        optimizer.step()
        assert (layer.inverse(layer(x)) - x).norm() <= 1e-6 * x.norm()
    (low, high), sigma = layer.gain_bounds(), np.linalg.svd(_matrix(layer, (4, 5, 5)), compute_uv=False)
    assert low - 1e-12 <= sigma.min() <= sigma.max() <= high + 1e-12


def test_the_gain_holds_beyond_the_interval_of_the_polynomial():
    p = polynomial(2.1, 3, "chebyshev")
    for norm in (0.5, 2.1, 3.0):
        t = np.linspace(-norm, norm, 2001)
        values = np.abs(np.polynomial.polynomial.polyval(1j * t, [float(c) for c in p.in_powers()]))
        low, high = p.gain_within(norm)
        assert low <= values.min() + 1e-12
        assert values.min() <= low + 1e-3
        assert values.max() - 1e-12 <= high <= values.max() + 1e-3


def test_a_filter_that_is_causal_and_skew_mixes_no_times():
    torch.manual_seed(0)
    causal = torch.zeros(3, 3, 5, dtype=torch.float64)
    causal[:, :, :3] = torch.randn(3, 3, 3, dtype=torch.float64)  # reads the present and the past
    skew = causal - causal.transpose(0, 1).flip(2)
    assert bool(skew[:, :, 3:].any())  # made skew, it reads the future
    skew[:, :, 3:] = 0  # made causal again, it is skew with its past left out only
    assert not torch.equal(skew, -skew.transpose(0, 1).flip(2))
    skew[:, :, :2] = 0
    assert torch.equal(skew, -skew.transpose(0, 1).flip(2))
