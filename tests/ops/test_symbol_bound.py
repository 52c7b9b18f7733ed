"""The symbol bound: its frequencies, its cosines by Riesz's lemma, its grid, its tightness; and the Fantastic Four."""

import math

import pytest
import torch

from skewconv.ops.convolution import skew_filter
from skewconv.ops.norms import _grid_points, fantastic_four_reshapes, norm_upper_bound, symbol_error, symbols
from tests.ops.test_norms import METHODS


def symbol_maximum(weight, points):
    """The norm on a circular image of the given size, a lower bound of the supremum: an FFT and an SVD."""
    axes = tuple(range(2, weight.dim()))
    symbols = torch.fft.fftn(weight, s=(points,) * len(axes), dim=axes)
    return float(torch.linalg.matrix_norm(symbols.flatten(2).permute(2, 0, 1), 2).max())


@pytest.mark.parametrize("channels", [1, 2, 5, 12])
@pytest.mark.parametrize("skew", [True, False])
def test_the_symbol_bound_is_within_three_percent_of_the_supremum_on_a_32_grid(channels, skew):
    for _ in range(2):
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
    blocks = torch.randn(2, 2, 3, *kernel, dtype=dtype)
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


def test_pointwise_filters_need_a_single_frequency():
    weight = torch.randn(5, 3, 1, 1, dtype=torch.float64)
    assert _grid_points(weight, "symbol", 1, None) == (1, 1)
    truth = float(torch.linalg.matrix_norm(weight[:, :, 0, 0], 2))
    assert truth <= norm_upper_bound(weight) <= truth * (1 + 1e-12)
    assert norm_upper_bound(weight, grid=9) == pytest.approx(norm_upper_bound(weight), rel=1e-12)


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


def test_the_fantastic_four_bound_is_the_least_of_the_four_norms():
    for skew in (False, True):
        weight = torch.randn(4, 4, 3, 5, dtype=torch.float64)
        weight = skew_filter(weight) if skew else weight
        least = min(float(torch.linalg.matrix_norm(m, 2)) for m in fantastic_four_reshapes(weight))
        assert norm_upper_bound(weight, "fantastic-four") == pytest.approx(math.sqrt(15) * least, rel=1e-12)
