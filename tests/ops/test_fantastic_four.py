"""The Fantastic Four: the four reshapes of the paper, and two norms in place of four for skew filters."""

import math

import pytest
import torch

from skewconv.ops.filters import skew_filter
from skewconv.ops.norms import (
    fantastic_four_reshapes,
    norm_upper_bound,
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("kernel", [(3,), (3, 3), (3, 5), (3, 1, 3)])
def test_complementary_reshapes_of_a_skew_filter_have_equal_norms(kernel, dtype):
    skew = skew_filter(torch.randn(8, 4, *kernel, dtype=dtype), groups=2)
    norms = [torch.linalg.matrix_norm(m, 2) for m in fantastic_four_reshapes(skew, groups=2)]
    assert len(norms) == 2 ** len(kernel)
    for one, other in zip(norms, reversed(norms), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    half = [torch.linalg.matrix_norm(m, 2) for m in fantastic_four_reshapes(skew, groups=2, skew=True)]
    assert len(half) == 2 ** (len(kernel) - 1)
    torch.testing.assert_close(half, norms[: len(half)], rtol=1e-12, atol=0)


def test_the_reshapes_are_the_four_matrices_of_the_paper():
    weight = torch.randn(2, 3, 4, 5)
    t, r, s, u = fantastic_four_reshapes(weight)
    torch.testing.assert_close(t[0], weight.reshape(2, 60))
    torch.testing.assert_close(u[0], weight.permute(0, 2, 3, 1).reshape(40, 3))
    torch.testing.assert_close(r[0], weight.permute(0, 2, 1, 3).reshape(8, 15))
    torch.testing.assert_close(s[0], weight.permute(0, 3, 1, 2).reshape(10, 12))
    assert t.data_ptr() == weight.data_ptr()


def test_the_reshapes_keep_the_type_and_the_gradient():
    weight = torch.randn(4, 2, 3, 3, dtype=torch.bfloat16, requires_grad=True)
    reshapes = fantastic_four_reshapes(weight, groups=2)
    assert {m.dtype for m in reshapes} == {torch.bfloat16}
    sum(m.sum() for m in reshapes).backward()
    assert torch.equal(weight.grad, torch.full_like(weight, 4))  # exact: sums of ones


def test_the_fantastic_four_bound_is_the_least_of_the_four_norms():
    for skew in (False, True):
        weight = torch.randn(4, 4, 3, 5, dtype=torch.float64)
        weight = skew_filter(weight) if skew else weight
        least = min(float(torch.linalg.matrix_norm(m, 2)) for m in fantastic_four_reshapes(weight))
        assert norm_upper_bound(weight, "fantastic-four") == pytest.approx(math.sqrt(15) * least, rel=1e-12)
