"""Absolute row sums of a Gram operator, against the dense matrix and exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from skewconv.errors import NotFiniteError
from skewconv.ops import dense_jacobian
from skewconv.ops.gram_row_sums import gram_row_sums, gram_row_sums_upper_bound, scaled_gram_upper_bound

SHAPES = [(3, 2, 3, 3), (2, 4, 3, 3), (3, 3, 1, 1), (2, 2, 5, 3), (4, 3, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_the_diagonal_of_row_sums_dominates_the_gram_operator(shape, padding_mode):
    torch.manual_seed(0)
    weight, q = torch.randn(shape, dtype=torch.float64), torch.rand(shape[1], dtype=torch.float64) + 0.1
    for weights in (None, q):
        r = gram_row_sums(weight, weights)
        for side in (1, 2, 5, 6):
            if padding_mode == "circular" and side < 2:
                continue
            jacobian = dense_jacobian(weight, (side, side), padding_mode)
            difference = torch.diag(r.repeat_interleave(side * side)) - jacobian.T @ jacobian
            assert float(torch.linalg.eigvalsh(difference)[0]) >= -1e-9 * float(r.max())


@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e150])
def test_the_upper_bound_is_never_below_the_exact_sums(scale):
    torch.manual_seed(0)
    weight, q = torch.randn(3, 2, 2, 2, dtype=torch.float64) * scale, [Fraction(1, 3), Fraction(7)]
    found = gram_row_sums_upper_bound(weight, torch.tensor([float(v) for v in q], dtype=torch.float64))
    taken = [Fraction(float(v)) for v in q]
    w = np.vectorize(lambda value: Fraction(float(value)))(weight.numpy())
    for i in range(2):
        total = Fraction(0)
        for j in range(2):
            for a in (-1, 0, 1):
                for b in (-1, 0, 1):
                    first = w[:, i, max(0, -a) : 2 - max(0, a), max(0, -b) : 2 - max(0, b)]
                    second = w[:, j, max(0, a) : 2 + min(0, a), max(0, b) : 2 + min(0, b)]
                    total += abs((first * second).sum()) * taken[j] / taken[i]
        assert total <= Fraction(float(found[i])) <= total * (1 + Fraction(1, 10**6)) + Fraction(1, 2**900)


def test_the_scaled_bound_holds_and_is_met_where_one_can_be():
    torch.manual_seed(0)
    for shape in SHAPES:
        weight, scale = torch.randn(shape, dtype=torch.float64), torch.rand(shape[1], dtype=torch.float64)
        jacobian = dense_jacobian(weight * scale.sqrt().view(1, -1, 1, 1), (6, 6), "circular")
        true = float(torch.linalg.matrix_norm(jacobian, 2)) ** 2
        assert true <= scaled_gram_upper_bound(weight, scale)
    # Without negative taps the operator is largest at frequency zero, and the best q is its leading vector.
    weight = torch.rand(4, 3, 3, 3, dtype=torch.float64)
    norm = float(torch.linalg.matrix_norm(weight.sum((2, 3)), 2)) ** 2
    assert norm <= scaled_gram_upper_bound(weight) <= norm * (1 + 1e-6)
    assert scaled_gram_upper_bound(torch.zeros(2, 2, 3, 3)) < 1e-200


def test_what_is_not_finite_is_refused():
    with pytest.raises(NotFiniteError):
        gram_row_sums_upper_bound(torch.full((1, 1, 1, 1), float("inf")))
