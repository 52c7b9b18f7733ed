"""Upper bounds are above the dense norm and estimates below it, for every filter, image, padding and dilation."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from skewconv.errors import ArgumentError, DtypeError, NotFiniteError, ShapeError
from skewconv.ops.dense_matrices import dense_jacobian
from skewconv.ops.filters import skew_filter
from skewconv.ops.norms import (
    _by_group,
    _grid_points,
    fantastic_four_reshapes,
    norm_estimate,
    norm_upper_bound,
    norm_upper_bound_at,
    symbol_error,
    symbols,
)

METHODS = ["symbol", "gram", "fantastic-four"]
PADDINGS = ["zeros", "circular"]


def dense_norm(weight: Tensor, size, padding_mode="zeros", dilation=1, groups=1) -> float:
    return float(np.linalg.norm(dense_jacobian(weight, size, padding_mode, dilation, groups).numpy(), 2))


def symbol_maximum(weight: Tensor, points: int) -> float:
    """The norm on a circular image of the given size, a lower bound of the supremum: an FFT and an SVD."""
    axes = tuple(range(2, weight.dim()))
    symbols = torch.fft.fftn(weight, s=(points,) * len(axes), dim=axes)
    return float(torch.linalg.matrix_norm(symbols.flatten(2).permute(2, 0, 1), 2).max())


@st.composite
def filters(draw):
    """(weight, groups): real and complex, one to three axes, odd and even kernels, skew or any channels."""
    axes = draw(st.integers(1, 3))
    kernel = draw(st.tuples(*[st.integers(1, 5 if axes == 1 else 4 if axes == 2 else 3)] * axes))
    groups = draw(st.integers(1, 3))
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from([torch.float64, torch.complex128]))
    skew = draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    shape = (groups * rows, rows if skew else columns, *kernel)
    weight = torch.randn(shape, dtype=dtype, generator=generator)
    sparse = draw(st.booleans())
    if sparse:
        weight = weight * (torch.rand(shape, generator=generator) < 0.4)
    return (skew_filter(weight, groups) if skew else weight), groups


def small_sizes(weight: Tensor):
    return {3: [(1,), (4,), (9,)], 4: [(1, 2), (4, 3)], 5: [(2, 1, 2), (2, 3, 2)]}[weight.dim()]


@settings(max_examples=220)
@given(filters(), st.sampled_from(METHODS), st.integers(1, 3))
def test_upper_bounds_are_above_the_dense_norm(filter_and_groups, method, dilation):
    weight, groups = filter_and_groups
    bound = norm_upper_bound(weight, method, groups=groups)
    for size, padding_mode in itertools.product(small_sizes(weight), PADDINGS):
        assert bound >= dense_norm(weight, size, padding_mode, dilation, groups)


@settings(max_examples=120)
@given(filters(), st.integers(0, 2))
def test_upper_bounds_on_coarse_grids_are_above_the_dense_norm(filter_and_groups, extra):
    weight, groups = filter_and_groups
    grid = tuple(k + extra for k in weight.shape[2:])
    bounds = [norm_upper_bound(weight, method, groups=groups, grid=grid) for method in ("symbol", "gram")]
    for size, padding_mode in itertools.product(small_sizes(weight), PADDINGS):
        assert min(bounds) >= dense_norm(weight, size, padding_mode, 1, groups)


@settings(max_examples=60)
@given(filters(), st.sampled_from(PADDINGS), st.integers(1, 2), st.integers(1, 20))
def test_estimates_are_below_the_dense_norm(filter_and_groups, padding_mode, dilation, iterations):
    weight, groups = filter_and_groups
    size = {3: (9,), 4: (4, 5), 5: (2, 3, 2)}[weight.dim()]
    truth = dense_norm(weight, size, padding_mode, dilation, groups)
    options = {"dilation": dilation, "groups": groups}
    estimate = norm_estimate(weight, size, padding_mode, iterations, **options)
    assert 0 <= estimate <= truth * (1 + 1e-9)
    assert estimate > 0 or truth == 0


@pytest.mark.parametrize("padding_mode", PADDINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("kernel", [(3,), (4,), (3, 3), (2, 3), (3, 2, 3)])
def test_many_iterations_bring_the_estimate_to_the_dense_norm(kernel, dtype, padding_mode):
    weight = torch.randn(6, 2, *kernel, dtype=dtype)
    size = {1: (7,), 2: (4, 5), 3: (3, 3, 3)}[len(kernel)]
    truth = dense_norm(weight, size, padding_mode, groups=2)
    assert norm_estimate(weight, size, padding_mode, 300, groups=2) >= 0.99 * truth


@pytest.mark.parametrize("channels", [1, 2, 5, 12])
@pytest.mark.parametrize("skew", [True, False])
def test_the_symbol_bound_is_within_three_percent_of_the_supremum_on_a_32_grid(channels, skew):
    for _ in range(5):
        weight = torch.randn(channels, channels, 3, 3, dtype=torch.float64)
        weight = skew_filter(weight) if skew else weight
        supremum = symbol_maximum(weight, 128)
        assert supremum <= norm_upper_bound(weight, grid=32) <= 1.01 * supremum
        assert supremum <= norm_upper_bound(weight) <= 1.01 * supremum
        assert supremum <= norm_upper_bound(weight, "gram", grid=32) <= 1.03 * supremum
        assert supremum <= norm_upper_bound(weight, "fantastic-four")


@pytest.mark.parametrize("kernel", [(3,), (4,), (2, 3), (5, 1), (2, 1, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_bound_without_its_cosines_is_the_maximum_over_the_grid(kernel, dtype):
    weight = torch.randn(3, 4, *kernel, dtype=dtype)
    cosines = math.prod(math.cos(math.pi * (k - 1) / 2 / 7) for k in kernel)
    maximum = symbol_maximum(weight, 7)
    assert maximum * (1 - 1e-14) <= norm_upper_bound(weight, grid=7) * cosines <= maximum * (1 + 1e-11)


def test_riesz_lemma_is_sharp_for_a_cosine_between_grid_points():
    weight = torch.tensor([[[0.5, 0.0, 0.5]]], dtype=torch.float64)
    for points in (4, 6, 8):
        shift = torch.exp(torch.tensor(1j * math.pi / points, dtype=torch.complex128))
        rotated = weight * torch.stack([shift, shift**0, 1 / shift])
        assert 1.0 <= norm_upper_bound(rotated, grid=points) <= 1.0 + 1e-12


def test_even_kernels_need_only_half_integer_degrees():
    weight = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)  # |symbol| = 2 |sin(w / 2)|, largest at w = pi
    assert 2.0 <= norm_upper_bound(weight, grid=3) <= 2.0 + 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("points", [(5,), (4, 7), (2, 3, 4)])
def test_the_symbols_are_those_of_the_fast_fourier_transform(points, dtype):
    kernel = {1: (5,), 2: (4, 3), 3: (2, 3, 1)}[len(points)]
    blocks = _by_group(torch.randn(4, 3, *kernel, dtype=dtype), 2)
    axes = tuple(range(3, 3 + len(points)))
    reference = torch.linalg.svdvals(torch.fft.fftn(blocks, s=points, dim=axes).flatten(3).permute(3, 0, 1, 2))
    found = torch.linalg.svdvals(torch.cat(list(symbols(blocks, points))))
    # The taps are centred, which turns each symbol by a phase, and half of the frequencies are left out.
    for values in reference.flatten(0, 1):
        assert float((found - values).abs().amax(1).min()) <= symbol_error(blocks) + 1e-14
    expected = math.prod(points) * 2
    assert len(found) == expected if dtype == torch.complex128 else len(found) <= expected / 2 + 2**4


def test_many_frequencies_are_taken_in_chunks(monkeypatch):
    weight = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    whole = [norm_upper_bound(weight, method, groups=2) for method in METHODS]
    monkeypatch.setattr("skewconv.ops.norms._CHUNK_BYTES", 4096)
    assert [norm_upper_bound(weight, method, groups=2) for method in METHODS] == pytest.approx(whole, rel=1e-12)


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


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("skew", [True, False])
def test_the_bound_of_groups_is_the_maximum_over_the_groups(method, skew):
    blocks = torch.randn(3, 4, 4, 3, 3, dtype=torch.float64) * torch.tensor([1.0, 5.0, 2.0])[:, None, None, None, None]
    blocks = torch.stack([skew_filter(block) for block in blocks]) if skew else blocks
    expanded = torch.zeros(12, 12, 3, 3, dtype=torch.float64)
    for i, block in enumerate(blocks):
        expanded[4 * i : 4 * i + 4, 4 * i : 4 * i + 4] = block
    bound = norm_upper_bound(blocks.flatten(0, 1), method, groups=3, grid=None if method == "fantastic-four" else 8)
    largest = max(norm_upper_bound(b, method, grid=None if method == "fantastic-four" else 8) for b in blocks)
    whole = norm_upper_bound(expanded, method, grid=None if method == "fantastic-four" else 8)
    assert bound == pytest.approx(largest, rel=1e-12)
    assert bound <= whole * (1 + 1e-12)
    assert bound == pytest.approx(whole, rel=1e-2 if method == "gram" else 1e-11)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_low_precision_weights_are_bounded_as_the_numbers_they_are(method, dtype):
    weight = skew_filter(torch.randn(3, 3, 3, 3, dtype=dtype))
    double = weight.to(torch.complex128 if weight.is_complex() else torch.float64)
    # repeated: the first thing done is to widen the weight
    assert norm_upper_bound(weight, method) == norm_upper_bound(double, method)
    assert norm_upper_bound(weight.requires_grad_(), method) >= dense_norm(double, (4, 4), "circular")
    assert norm_estimate(weight, 4) == norm_estimate(double, 4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("exponent", [-1000, -700, 700, 1000])
def test_bounds_and_estimates_scale_with_the_filter(method, exponent):
    for weight in (torch.randn(3, 2, 3, 3).double(), skew_filter(torch.randn(2, 2, 3).double())):
        # exact: a power of two is taken out of the filter before, and put back after, the same computation
        scaled = weight * 2.0**exponent
        assert norm_upper_bound(scaled, method) == math.ldexp(norm_upper_bound(weight, method), exponent)
        assert norm_estimate(scaled, 4) == math.ldexp(norm_estimate(weight, 4), exponent)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("factor", [1e-323, 1e-300, 1e-200, 1e200, 1e300])
def test_extreme_filters_are_still_bounded(method, factor):
    weight = torch.tensor([[[-1.0, 0.0, 1.0]]], dtype=torch.float64) * factor  # symbol 2 i sin(w)
    supremum = 2 * float(weight.max())
    assert supremum <= norm_upper_bound(weight, method) <= max(1.3 * supremum, supremum + 1e-323)
    assert norm_estimate(weight, 3) <= supremum


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_the_zero_filter_has_bound_and_estimate_zero(method, dtype):
    weight = torch.zeros(4, 2, 3, 3, dtype=dtype)
    assert norm_upper_bound(weight, method, groups=2) == 0.0
    assert norm_estimate(weight, 5, groups=2) == 0.0


def test_a_norm_beyond_the_range_is_bounded_by_infinity_and_estimated_by_the_largest_number():
    weight = torch.full((8, 8, 3), 1e308, dtype=torch.float64)
    assert norm_upper_bound(weight) == math.inf
    assert norm_estimate(weight, 5) == torch.finfo(torch.float64).max


def test_pointwise_filters_need_a_single_frequency():
    weight = torch.randn(5, 3, 1, 1, dtype=torch.float64)
    assert _grid_points(weight, "symbol", 1, None) == (1, 1)
    truth = float(torch.linalg.matrix_norm(weight[:, :, 0, 0], 2))
    assert truth <= norm_upper_bound(weight) <= truth * (1 + 1e-12)
    assert norm_upper_bound(weight, grid=9) == pytest.approx(norm_upper_bound(weight), rel=1e-12)


def test_the_default_grid_depends_on_shapes_and_keeps_within_its_budget():
    def grid(*shape: int, method: str = "symbol") -> tuple[int, ...]:
        return _grid_points(torch.empty(shape), method, 1, None)

    assert grid(8, 8, 3, 3) == (32, 32)
    assert grid(8, 8, 3, 5) == (32, 64)
    assert grid(8, 8, 4) == (48,)
    assert grid(256, 256, 3, 3) == (32, 32)
    assert grid(4096, 4096, 3, 3) == (3, 3)
    assert 3 < grid(1024, 1024, 3, 3)[0] < grid(512, 512, 3, 3)[0] < 32
    assert grid(512, 512, 3, 3, method="gram") < grid(512, 512, 3, 3)


def test_the_estimate_is_deterministic_and_leaves_the_global_random_numbers_alone():
    weight = torch.randn(3, 3, 3, 3)
    state = torch.get_rng_state()
    first = norm_estimate(weight, 6, iterations=3)
    assert torch.equal(torch.get_rng_state(), state)  # moved
    torch.manual_seed(99)
    assert norm_estimate(weight, 6, iterations=3) == first  # repeated
    assert norm_estimate(weight, 6, iterations=3, seed=1) != first


def test_the_upper_bound_leaves_the_global_random_numbers_alone():
    weight = torch.randn(300, 300, 1)  # large enough for Lanczos, which starts from a random vector
    state = torch.get_rng_state()
    assert norm_upper_bound(weight, "fantastic-four") == norm_upper_bound(weight, "fantastic-four")  # repeated
    assert torch.equal(torch.get_rng_state(), state)  # moved


def test_the_estimate_grows_with_the_iterations():
    weight = torch.randn(3, 3, 3, 3)
    estimates = [norm_estimate(weight, 6, iterations=n) for n in (1, 2, 5, 20, 100)]
    assert estimates == sorted(estimates)


def test_bounds_and_estimates_work_in_inference_mode():
    with torch.inference_mode():
        weight = skew_filter(torch.randn(3, 3, 3, 3))
        assert norm_estimate(weight, 5) <= min(norm_upper_bound(weight, method) for method in METHODS)


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


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("dilation", [1, 2])
def test_the_bound_at_one_size_is_above_the_norm_and_not_above_the_bound_for_all(padding_mode, dilation):
    weight = torch.randn(4, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    skew = skew_filter(weight, groups=2)
    for size in ((1, 1), (2, 3), (5, 5)):
        if padding_mode == "circular" and min(size) <= 2 * dilation:
            continue
        options = {"padding_mode": padding_mode, "dilation": dilation, "groups": 2}
        norm = float(torch.linalg.matrix_norm(dense_jacobian(skew, size, **options), 2))
        bound = norm_upper_bound_at(skew, size, **options)
        assert norm <= bound <= norm_upper_bound(skew, groups=2) * (1 + 1e-9)
        if padding_mode == "circular" and dilation == 1:
            assert bound <= norm * (1 + 1e-9)


def test_the_bound_at_one_size_refuses_even_kernels():
    with pytest.raises(ArgumentError, match="odd sizes"):
        norm_upper_bound_at(torch.randn(2, 2, 2, 2), 4)
