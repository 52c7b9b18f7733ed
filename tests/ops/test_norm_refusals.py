"""What bounds and estimates of norms refuse, by name."""

import math

import pytest
import torch

from skewconv.errors import ArgumentError, DtypeError, NotFiniteError, ShapeError
from skewconv.ops.norms import (
    norm_estimate,
    norm_upper_bound,
    norm_upper_bound_at,
)

WEIGHT = torch.ones(4, 2, 3, 3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: norm_upper_bound(WEIGHT, "svd"), ArgumentError, "'symbol', 'fantastic-four', 'gram'.*'svd'"),
        (lambda: norm_upper_bound(WEIGHT, grid=2), ArgumentError, "grid=2.*at least k.*raise it"),
        (lambda: norm_upper_bound(WEIGHT, grid=(8, 2)), ArgumentError, r"grid=\(8, 2\)"),
        (lambda: norm_upper_bound(WEIGHT, grid=(8, 8, 8)), ArgumentError, "grid must be"),
        (lambda: norm_upper_bound(WEIGHT, grid=0), ArgumentError, "grid must be"),
        (lambda: norm_upper_bound(WEIGHT, "fantastic-four", grid=8), ArgumentError, "grid=8 has no meaning"),
        (lambda: norm_upper_bound(WEIGHT[0, 0]), ShapeError, r"\(3, 3\)"),
        (lambda: norm_upper_bound(WEIGHT.long()), DtypeError, "int64"),
        (lambda: norm_upper_bound(WEIGHT * math.nan), NotFiniteError, "NaN"),
        (lambda: norm_upper_bound(WEIGHT * math.inf), NotFiniteError, "infinite"),
        (lambda: norm_upper_bound(WEIGHT[:0]), ShapeError, "empty"),
        (lambda: norm_upper_bound(WEIGHT, groups=3), ShapeError, "groups=3 does not divide"),
        (lambda: norm_upper_bound(WEIGHT, groups=0), ArgumentError, "groups"),
        (lambda: norm_estimate(WEIGHT, (4, 4, 4)), ArgumentError, "size"),
        (lambda: norm_estimate(WEIGHT, 0), ArgumentError, "size"),
        (lambda: norm_estimate(WEIGHT, 4, iterations=0), ArgumentError, "iterations.*0"),
        (lambda: norm_estimate(WEIGHT, 4, iterations=1.5), ArgumentError, "iterations.*1.5"),
        (lambda: norm_estimate(WEIGHT, 4, "reflect"), ArgumentError, "'reflect'.*skew"),
        (lambda: norm_estimate(WEIGHT, 4, dilation=0), ArgumentError, "dilation"),
        (lambda: norm_estimate(WEIGHT.long(), 4), DtypeError, "int64"),
        (lambda: norm_estimate(WEIGHT, 4, groups=3), ShapeError, "groups=3"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_the_bound_at_one_size_refuses_even_kernels():
    with pytest.raises(ArgumentError, match="odd sizes"):
        norm_upper_bound_at(torch.randn(2, 2, 2, 2), 4)
