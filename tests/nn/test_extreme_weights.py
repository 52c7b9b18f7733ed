"""Filters whose weights are near the ends of their dtype's range are normalised as well as any other."""

import pytest
import torch

from skewconv.nn import SOC2d, SUC2d
from skewconv.ops import dense_jacobian

# dtype, and exponents e of the largest weights 2^e
EXTREMES = [
    (torch.float32, (126, 100, -100, -126, -140)),
    (torch.float64, (1020, 900, -900, -1000, -1060)),
]
CASES = [(dtype, e) for dtype, exponents in EXTREMES for e in exponents]


def _layer(dtype: torch.dtype, exponent: int) -> SOC2d:
    torch.manual_seed(0)
    layer = SOC2d(3, 3, 3, dtype=dtype).eval()
    with torch.no_grad():
        for parameter in (layer.free, layer.centre):
            # Away from zero, so that all keep some digits among the denormals, and below one.
            parameter.uniform_(0.25, 0.5).mul_(2.0 ** (exponent // 2)).mul_(2.0 ** (exponent - exponent // 2))
    return layer


@pytest.mark.parametrize(("dtype", "exponent"), CASES)
def test_the_norm_of_an_extreme_filter_is_below_its_bound_and_near_it(dtype: torch.dtype, exponent: int) -> None:
    layer, ordinary = _layer(dtype, exponent), _layer(dtype, 0)
    norms = [
        float(torch.linalg.matrix_norm(dense_jacobian(one.weight.detach().double(), (5, 5)), 2))
        for one in (layer, ordinary)
    ]
    assert norms[0] <= layer.proven_norm_bound()
    # Denormals have few digits, so that the filter itself is another one there.
    assert norms[0] == pytest.approx(norms[1], rel=0.2 if exponent < -126 else 1e-5)


@pytest.mark.parametrize(("dtype", "exponent"), [(torch.float32, 120), (torch.float64, 1000), (torch.float32, -100)])
def test_the_gradient_of_an_extreme_filter_is_that_of_an_ordinary_one_divided_by_its_size(dtype, exponent):
    gradients = []
    for e in (exponent, 0):
        layer = _layer(dtype, e)
        x = torch.linspace(-1, 1, 75, dtype=dtype).view(1, 3, 5, 5)
        (layer(x).sin().sum()).backward()
        gradients.append(layer.centre.grad.double())
    half = exponent // 2
    undone = gradients[0] * 2.0**half * 2.0 ** (exponent - half)
    torch.testing.assert_close(undone, gradients[1], rtol=1e-3, atol=1e-6)


def test_the_bound_of_float64_filters_is_lifted_above_what_was_asked_for() -> None:
    """One plus the unit roundoff is one in float64, so a margin made of such factors would be none."""
    for layer in (SOC2d(2, 2, 1, dtype=torch.float64), SUC2d(2, 2, 1, dtype=torch.complex128)):
        assert layer.proven_norm_bound() >= layer.norm_bound * (1 + 4 * 2.0**-53)
