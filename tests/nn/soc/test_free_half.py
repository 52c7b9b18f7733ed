"""The free half of a skew filter: packing, assembling, and their derivatives."""

import pytest
import torch
from hypothesis import given, settings
from torch.autograd import gradcheck, gradgradcheck

from skewconv.nn.soc.free_half import assemble, free_half, packed, packed_shape, taps_of
from skewconv.ops import skew_filter
from tests.strategies import cases


@pytest.mark.parametrize("n", range(1, 12))
def test_the_triangle_fills_the_rectangle_exactly_once(n):
    rows, columns = packed_shape(n)
    assert rows * columns == n * (n - 1) // 2
    lower = torch.arange(1.0, n * n + 1).reshape(1, n, n).tril(-1)
    centre = packed(lower)
    assert centre.shape == (1, rows, columns)
    assert sorted(centre.flatten().tolist()) == sorted(v for v in lower.flatten().tolist() if v)
    filter_ = assemble(None, centre, None, taps_of((1,)), n)
    assert torch.equal(filter_[..., 0], (lower - lower.mT)[0])  # moved


@settings(max_examples=100)
@given(cases(dtypes=(torch.float64, torch.complex64)))
def test_every_skew_filter_comes_back_from_its_free_half_to_the_last_bit(case):
    skew = skew_filter(case.weight, case.groups)
    taps = taps_of(tuple(case.weight.shape[2:]))
    free, centre, phase = free_half(skew, taps, case.groups)
    again = assemble(free if taps.free else None, centre, phase if skew.is_complex() else None, taps, skew.shape[1])
    assert torch.equal(again, skew)  # moved
    assert again.movedim(1, -1).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(("kernel", "groups", "n"), [((3,), 2, 3), ((2, 3), 1, 4), ((1, 1), 2, 4), ((2, 1, 3), 1, 1)])
def test_the_derivatives_of_assembling_are_exact(dtype, kernel, groups, n):
    taps = taps_of(kernel)
    free = torch.randn(len(taps.free), groups * n, n, dtype=dtype, requires_grad=True) if taps.free else None
    centre = torch.randn(groups, *packed_shape(n), dtype=dtype, requires_grad=True)
    phase = torch.randn(groups, n, dtype=torch.float64, requires_grad=True) if dtype.is_complex else None
    given = [t for t in (free, centre, phase) if t is not None and t.numel()]

    def function(*values):
        left = iter(values)
        parts = [next(left) if t is not None and t.numel() else t for t in (free, centre, phase)]
        filter_ = assemble(*parts, taps, n)
        return filter_ * filter_.abs().sum()

    if given:
        assert gradcheck(function, given)
        assert gradgradcheck(function, given)
