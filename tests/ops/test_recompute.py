"""recompute=True: the same gradients, again and again, with memory that does not grow with the degree."""

import pytest
import torch

from skewconv.bench import peak_bytes
from skewconv.ops import norm_upper_bound, polynomial, skew_filter
from skewconv.ops.convolution import Geometry
from skewconv.ops.convolution_exponential import apply_polynomial
from skewconv.ops.series import SERIES

GEOMETRY = Geometry.of((3, 3), "zeros", 1, 1)


def _case(degree: int, series: str):
    raw = torch.randn(4, 4, 3, 3, dtype=torch.float64)
    raw = (raw * (2.0 / norm_upper_bound(skew_filter(raw)))).requires_grad_()
    x = torch.randn(3, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    p = polynomial(2.1, degree, series)
    return x, raw, lambda again: apply_polynomial(x, skew_filter(raw), p, GEOMETRY, engine="series", recompute=again)


@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize("degree", [1, 2, 3, 4, 9])
def test_gradients_are_the_stored_ones_also_the_second_time(degree, series):
    x, raw, apply = _case(degree, series)
    expected = torch.autograd.grad(apply(False).square().sum(), (x, raw))
    loss = apply(True).square().sum()
    for _ in range(2):
        found = torch.autograd.grad(loss, (x, raw), retain_graph=True)
        for left, right in zip(found, expected, strict=True):
            torch.testing.assert_close(left, right, atol=1e-9, rtol=0)


def test_memory_is_flat_in_the_degree():
    peaks = []
    for degree in (4, 9, 16):
        _, _, apply = _case(degree, "chebyshev")
        peaks.append(peak_bytes(lambda apply=apply: apply(True).sum().backward()))
    assert max(peaks) <= 1.05 * min(peaks)
    _, _, apply = _case(16, "chebyshev")
    assert peak_bytes(lambda: apply(False).sum().backward()) > 1.5 * max(peaks)
