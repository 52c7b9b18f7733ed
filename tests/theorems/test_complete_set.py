"""The complete set: every orthogonal circular convolution of the identity component is exp of a skew one."""

import math
from itertools import product

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skewconv.errors import ArgumentError, ShapeError
from skewconv.nn import BCOP2d, Cayley2d
from skewconv.ops import (
    circular_filter,
    conv_exp,
    dense_jacobian,
    dense_matrix,
    norm_upper_bound_at,
    skew_filter,
    skew_logarithm,
    transpose_filter,
    wrap_angles,
)

SHAPES = [(1, 6), (2, 1), (2, 5), (3, 2, 3), (2, 4, 4), (2, 3, 4), (3, 5, 5), (4, 2, 2), (2, 2, 3, 2)]


def _draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _filter_of(matrix: np.ndarray, shape: tuple[int, ...]) -> torch.Tensor:
    dense = torch.from_numpy(matrix)
    return circular_filter(lambda x: (x.flatten(1) @ dense.T).view_as(x), shape, dtype=dense.dtype)


def _matrix_of(skew: torch.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """exp(J), after what must hold for every logarithm has been checked."""
    assert torch.equal(skew, -transpose_filter(skew))  # exact: made as the difference of a filter and its transpose
    assert tuple(skew.shape) == (shape[0], shape[0], *(n + 1 - n % 2 for n in shape[1:]))
    jacobian = dense_jacobian(skew, shape[1:], "circular").numpy()
    assert np.linalg.norm(jacobian, 2) <= math.pi * (1 + 1e-12)
    return np.asarray(scipy.linalg.expm(jacobian))


def _real_waves(size: tuple[int, ...]) -> dict[tuple[int, ...], np.ndarray]:
    """The unit vectors with entries of one modulus and alternating signs, by their frequencies."""
    signs = {}
    for frequency in product(*((0, n // 2) if n % 2 == 0 else (0,) for n in size)):
        wave = np.ones(())
        for f, n in zip(frequency, size, strict=True):
            wave = np.multiply.outer(wave, (-1.0) ** (np.arange(n) * (f > 0)))
        signs[frequency] = wave.flatten() / math.sqrt(math.prod(size))
    return signs


@settings(max_examples=30)
@given(st.sampled_from(SHAPES), st.sampled_from([torch.float64, torch.complex128]), st.integers(0, 2**31))
def test_every_exponential_of_a_skew_circular_filter_is_that_of_a_short_one(shape, dtype, seed):
    skew = skew_filter(_draw(shape[0], shape[0], *(n + 2 for n in shape[1:]), dtype=dtype, seed=seed))
    orthogonal = scipy.linalg.expm(dense_jacobian(skew, shape[1:], "circular").numpy())
    weight = _filter_of(orthogonal, shape)
    np.testing.assert_allclose(dense_jacobian(weight, shape[1:], "circular").numpy(), orthogonal, atol=1e-12)
    short = skew_logarithm(weight, shape[1:])
    assert short.dtype == dtype
    np.testing.assert_allclose(_matrix_of(short, shape), orthogonal, atol=1e-11)


@settings(max_examples=30)
@given(st.sampled_from(SHAPES), st.integers(0, 2**31))
def test_a_real_logarithm_exists_exactly_where_every_real_frequency_has_determinant_one(shape, seed):
    """The orthogonal polar factor of any circular convolution is one too: all components of the group are drawn."""
    channels, *size = shape
    dense = dense_jacobian(_draw(channels, channels, *size, seed=seed), size, "circular").numpy()
    orthogonal = scipy.linalg.polar(dense)[0]
    weight, negative = _filter_of(orthogonal, shape), []
    for frequency, wave in _real_waves(tuple(size)).items():
        images = np.kron(np.eye(channels), wave)
        if np.linalg.det(images @ orthogonal @ images.T) < 0:
            negative.append(frequency)
    if negative:
        with pytest.raises(ArgumentError, match="determinant -1") as refusal:
            skew_logarithm(weight, tuple(size))
        assert f"frequencies {negative} of images" in str(refusal.value)
    else:
        np.testing.assert_allclose(_matrix_of(skew_logarithm(weight, tuple(size)), shape), orthogonal, atol=1e-9)
    unitary = skew_logarithm(weight.to(torch.complex128), tuple(size))
    np.testing.assert_allclose(_matrix_of(unitary, shape), orthogonal, atol=1e-9)


@pytest.mark.parametrize("size", [(4,), (5,), (2, 4), (3, 4), (3, 3)])
def test_a_reflection_at_one_real_frequency_is_refused_and_two_are_a_turn_by_pi(size):
    shape, pixels = (3, *size), math.prod(size)
    for frequency, wave in _real_waves(size).items():
        reflection = np.eye(3 * pixels) - 2 * np.kron(np.diag([1.0, 0, 0]), np.outer(wave, wave))
        with pytest.raises(ArgumentError, match="take a complex one") as refusal:
            skew_logarithm(_filter_of(reflection, shape), size)
        assert f"frequencies {[frequency]} of images" in str(refusal.value)
        turn = np.eye(3 * pixels) - 2 * np.kron(np.diag([1.0, 0, 1]), np.outer(wave, wave))
        skew = skew_logarithm(_filter_of(turn, shape), size)
        np.testing.assert_allclose(_matrix_of(skew, shape), turn, atol=1e-12)
        assert norm_upper_bound_at(skew, size, "circular") == pytest.approx(math.pi, rel=1e-9)


@pytest.mark.parametrize("kernel_size", [2, 3])
@pytest.mark.parametrize("size", [(5, 5), (4, 4), (3, 6)])
@pytest.mark.parametrize("kind", [BCOP2d, Cayley2d])
def test_a_layer_becomes_a_skew_filter_and_comes_back(kind, size, kernel_size):
    layer = kind(4, 4, kernel_size, dtype=torch.float64).eval()
    with torch.no_grad():
        layer.bias.uniform_()
        weight = circular_filter(layer, (4, *size))
    matrix = dense_matrix(lambda x: layer(x) - layer(torch.zeros_like(x)), (4, *size)).detach()
    torch.testing.assert_close(dense_jacobian(weight, size, "circular"), matrix, atol=1e-12, rtol=0)
    if torch.linalg.det(weight.sum((2, 3))) < 0:  # BCOP's H has either determinant, and so have all frequencies
        weight[0] *= -1
    skew = skew_logarithm(weight, size)
    exact = dense_jacobian(weight, size, "circular").numpy()
    np.testing.assert_allclose(_matrix_of(skew, (4, *size)), exact, atol=1e-11)
    bound = norm_upper_bound_at(skew, size, "circular")
    assert bound <= math.pi * (1 + 1e-9)
    for engine in ("auto", "series", "spectral", "dense"):
        options = {"norm_bound": bound, "tol": 1e-12, "padding_mode": "circular", "engine": engine}
        back = circular_filter(lambda x, options=options: conv_exp(x, skew, **options), (4, *size))
        torch.testing.assert_close(back, weight, atol=1e-11, rtol=0)


def _distance_from_a_convolution(matrix: torch.Tensor, shape: tuple[int, int, int], padding_mode: str) -> torch.Tensor:
    """matrix - T for the nearest T (least squares) that is the Jacobian of a filter of any size.

    Filters of one tap each have orthogonal Jacobians, so that T is a sum of projections.
    """
    channels, *size = shape
    blocks = matrix.unflatten(0, (channels, -1)).unflatten(2, (channels, -1)).clone()
    reach = [n - 1 if padding_mode == "zeros" else n // 2 for n in size]
    for tap in product(*(range(2 * r + 1) for r in reach)):
        weight = torch.zeros(1, 1, *(2 * r + 1 for r in reach), dtype=matrix.dtype)
        weight[(0, 0, *tap)] = 1
        shift = dense_jacobian(weight, size, padding_mode)
        share = torch.einsum("ipjq,pq->ij", blocks, shift) / shift.sum()
        blocks -= torch.einsum("ij,pq->ipjq", share, shift)
    return blocks.reshape(matrix.shape)


@pytest.mark.parametrize("seed", range(2))
def test_the_wrapped_generator_is_a_convolution_around_a_torus_and_none_with_zeros_past_the_border(seed):
    """Remark (a) after Theorem 4 is true of zero padding, and false of circular padding."""
    skew, shape = skew_filter(_draw(2, 2, 3, 3, seed=seed)), (2, 4, 4)
    for padding_mode in ("zeros", "circular"):
        jacobian = dense_jacobian(skew, 4, padding_mode)
        assert _distance_from_a_convolution(jacobian, shape, padding_mode).abs().max() < 1e-13
        wrapped = wrap_angles(jacobian)
        distance = _distance_from_a_convolution(wrapped, shape, padding_mode)
        if padding_mode == "circular":
            assert distance.abs().max() < 1e-12
            found = skew_logarithm(_filter_of(scipy.linalg.expm(jacobian.numpy()), shape), 4)
            torch.testing.assert_close(dense_jacobian(found, 4, "circular"), wrapped, atol=1e-11, rtol=0)
        else:
            assert 7 < torch.linalg.matrix_norm(jacobian, 2) < 10
            # Shorter than pi, so that no other skew matrix of norm up to pi has this exponential.
            assert torch.linalg.matrix_norm(wrapped, 2) < math.pi - 1e-6
            assert 0.5 < distance.abs().max() < 2
            assert distance.norm() > 0.5 * wrapped.norm()


def test_a_filter_that_is_not_orthogonal_is_refused_with_its_defect():
    weight = _filter_of(scipy.linalg.expm(dense_jacobian(skew_filter(_draw(2, 2, 3)), 4, "circular").numpy()), (2, 4))
    weight[0, 1, 2] += 0.01
    jacobian = dense_jacobian(weight, 4, "circular")
    defect = float(torch.linalg.matrix_norm(jacobian.T @ jacobian - torch.eye(8), 2))
    with pytest.raises(ArgumentError, match=r"not orthogonal .* size \(4,\)") as refusal:
        skew_logarithm(weight, 4)
    assert f"is {defect:.2g}, allowed" in str(refusal.value)
    with pytest.raises(ShapeError, match="m channels to m channels"):
        skew_logarithm(torch.zeros(2, 3, 3), 4)


@pytest.mark.parametrize(
    ("other", "shape", "error", "words"),
    [
        (torch.nn.Conv2d(2, 3, 3, padding=1), (2, 4, 4), ArgumentError, "no circular convolution"),
        (torch.nn.Conv2d(2, 2, 2, stride=2), (2, 4, 4), ShapeError, "stride 1"),
        (torch.nn.Identity(), (2,), ShapeError, "1 to 3 spatial axes"),
        (torch.abs, (2, 4), ArgumentError, "must be linear"),
        (lambda x: x * math.nan, (2, 4), ArgumentError, "no circular convolution"),
    ],
)
def test_a_map_that_is_no_circular_convolution_has_no_filter(other, shape, error, words):
    with pytest.raises(error, match=words):
        circular_filter(other, shape, dtype=torch.float32)


def test_the_filter_of_a_circular_convolution_of_pytorch_is_its_own():
    conv = torch.nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", dtype=torch.float64)
    found = circular_filter(conv, (2, 4, 5)).detach()
    torch.testing.assert_close(found, torch.nn.functional.pad(conv.weight.detach(), (1, 1, 1, 1)), atol=1e-14, rtol=0)
    assert torch.equal(circular_filter(lambda x: 0 * x, (2, 3)), torch.zeros(2, 2, 3, dtype=torch.float64))
