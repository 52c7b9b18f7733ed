"""conv_exp against scipy's matrix exponential of the dense Jacobian, and its refusals."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skewconv.errors import ArgumentError, DtypeError, NormBoundError, NotFiniteError, NotSkewError, ShapeError
from skewconv.ops import conv_exp, dense_jacobian, dense_matrix, norm_upper_bound, skew_filter, truncation_error
from skewconv.ops.series import SERIES
from tests.strategies import ROUNDING, WIDE, cases


def _normalised(case, norm: float):
    """A skew filter whose Jacobian has this norm on the case's image (or is zero), and that Jacobian."""
    skew = skew_filter(case.weight, case.groups)
    jacobian = dense_jacobian(skew.to(WIDE[skew.dtype]), case.size, **case.options)
    true = np.linalg.norm(jacobian.numpy(), 2)
    scale = norm / true if true > 1e-6 else 1.0
    skew = skew * scale
    return skew, dense_jacobian(skew.to(WIDE[skew.dtype]), case.size, **case.options)


@settings(max_examples=60)
@given(cases(), st.sampled_from(list(SERIES)), st.integers(0, 12), st.floats(0.1, 2 * math.pi), st.booleans())
def test_the_error_stays_under_the_proven_one(case, series, degree, norm, inverse):
    skew, jacobian = _normalised(case, norm)
    x = case.image()
    bound = norm * (1 + 1e-6)
    y = conv_exp(x, skew, norm_bound=bound, degree=degree, series=series, inverse=inverse, **case.options)
    exact = scipy.linalg.expm((-jacobian if inverse else jacobian).numpy())
    expected = x.flatten(1).to(jacobian.dtype).numpy() @ exact.T
    measured = np.linalg.norm(y.flatten(1).numpy() - expected) / np.linalg.norm(x.numpy())
    assert measured <= truncation_error(bound, degree, series) + 50 * ROUNDING[x.dtype]


@settings(max_examples=30)
@given(
    cases(dtypes=(torch.float64, torch.complex128)),
    st.sampled_from(["taylor", "chebyshev"]),
    st.sampled_from([1e-2, 1e-6, 1e-12]),
)
def test_a_tolerance_is_kept_and_the_inverse_undoes_it(case, series, tol):
    skew, jacobian = _normalised(case, 2.1)
    options = {"norm_bound": 2.1 * (1 + 1e-9), "tol": tol, "series": series, **case.options}
    matrix = dense_matrix(lambda x: conv_exp(x, skew, **options), (case.channels, *case.size), dtype=skew.dtype)
    assert np.linalg.norm(matrix.numpy() - scipy.linalg.expm(jacobian.numpy()), 2) <= tol + 1e-12
    x = case.image()
    back = conv_exp(conv_exp(x, skew, **options), skew, inverse=True, **options)
    assert torch.linalg.vector_norm(back - x) <= (2 * tol + tol**2 + 1e-12) * torch.linalg.vector_norm(x)


def test_single_images_and_empty_batches_are_accepted():
    x, skew = torch.randn(5, 2, 4, 4), skew_filter(0.1 * torch.randn(2, 2, 3, 3))
    together = conv_exp(x, skew, norm_bound=3.0, degree=4)
    torch.testing.assert_close(conv_exp(x[3], skew, norm_bound=3.0, degree=4), together[3])
    assert conv_exp(x[:0], skew, norm_bound=3.0, degree=4).shape == (0, 2, 4, 4)


SKEW = skew_filter(torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(0)))
IMAGE = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x": torch.zeros(2, 5)}, ShapeError, r"\(2, 5\)"),
        ({"x": torch.zeros(1, 3, 5, 5)}, ShapeError, r"\(1, 3, 5, 5\)"),
        ({"x": torch.zeros(1, 2, 0, 5)}, ShapeError, "at least 1"),
        ({"x": IMAGE.double()}, DtypeError, "float64.*float32"),
        ({"x": torch.zeros(1, 2, 5, 5, dtype=torch.int32)}, DtypeError, "int32"),
        ({"x": torch.full((1, 2, 5, 5), math.nan)}, NotFiniteError, "NaN"),
        ({"skew": torch.full((2, 2, 3, 3), math.inf)}, NotFiniteError, "infinite"),
        ({"skew": torch.zeros(2, 2)}, ShapeError, r"\(2, 2\)"),
        ({"skew": torch.zeros(2, 3, 3, 3)}, ShapeError, "2 out and 3 in"),
        ({"skew": torch.ones(2, 2, 3, 3)}, NotSkewError, "skew_filter"),
        ({"skew": torch.zeros(2, 2, 2, 2)}, NotSkewError, "odd"),
        ({"skew": SKEW + 1e-3}, NotSkewError, "not skew"),
        ({"groups": 3}, ShapeError, "groups=3"),
        ({"padding_mode": "reflect"}, ArgumentError, "reflect"),
        ({"degree": -1}, ArgumentError, "-1"),
        ({"degree": None}, ArgumentError, "neither"),
        ({"tol": 1e-3}, ArgumentError, "both"),
        ({"degree": None, "tol": -1.0}, ArgumentError, "-1"),
        ({"norm_bound": 0.0}, ArgumentError, "norm_bound"),
        ({"norm_bound": 0.1}, NormBoundError, "norm_upper_bound"),
        ({"series": "pade"}, ArgumentError, "pade"),
        ({"engine": "magic"}, ArgumentError, "magic"),
        ({"dilation": 0}, ArgumentError, "dilation"),
    ],
)
def test_bad_arguments_are_refused_with_the_reason(change, error, words):
    arguments = {"x": IMAGE, "skew": SKEW, "norm_bound": 50.0, "degree": 3, **change}
    with pytest.raises(error, match=words):
        conv_exp(arguments.pop("x"), arguments.pop("skew"), **arguments)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_norm_bound_well_below_the_norm_is_noticed(share):
    torch.manual_seed(3)
    skew = skew_filter(torch.randn(8, 8, 3, 3))
    norm = np.linalg.norm(dense_jacobian(skew, (6, 6)).numpy(), 2)
    with pytest.raises(NormBoundError):
        conv_exp(torch.randn(2, 8, 6, 6), skew, norm_bound=share * norm, degree=4)


def test_a_norm_bound_below_one_column_is_noticed_where_power_iteration_would_be_dear():
    skew = skew_filter(torch.randn(64, 64, 3, 3))
    column = skew.transpose(0, 1).flatten(1).norm(dim=1).max()
    with pytest.raises(NormBoundError):
        conv_exp(torch.randn(1, 64, 32, 32), skew, norm_bound=0.9 * float(column), degree=4)


@pytest.mark.parametrize("seed", [13, 87])
def test_powers_that_overflow_float32_are_taken_in_float64(seed):
    torch.manual_seed(seed)
    x, skew = torch.randn(2, 4, 8, 8), 1.5 * skew_filter(torch.randn(4, 4, 3, 3))
    options = {"norm_bound": norm_upper_bound(skew), "tol": 1e-5}
    expected = conv_exp(x.double(), skew.double(), **options)
    assert torch.allclose(conv_exp(x, skew, **options).double(), expected, atol=1e-5)
