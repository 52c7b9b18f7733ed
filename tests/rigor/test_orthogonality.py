"""Defects of orthogonality: never below the truth, and scales that make what is nearly orthogonal non-expansive."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skewconv.ops import dense_jacobian
from skewconv.rigor import (
    eigenvalues,
    filter_gram_defect_upper_bound,
    gram_defect_upper_bound,
    non_expansive_scale,
    orthogonality,
)


@settings(max_examples=40)
@given(st.integers(1, 8), st.integers(1, 8), st.floats(0, 0.2), st.booleans(), st.integers(0, 99))
def test_the_defect_bounds_the_gram_residual(rows: int, columns: int, noise: float, wide: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.complex128 if wide else torch.float64
    q = torch.linalg.qr(torch.randn(3, max(rows, columns), min(rows, columns), dtype=dtype, generator=generator)).Q
    a = q + noise * torch.randn(q.shape, dtype=dtype, generator=generator)
    a = a if rows >= columns else a.mH.resolve_conj()
    sigma = np.linalg.svd(a.numpy(), compute_uv=False)
    truth = float(np.abs(sigma**2 - 0.9).max())
    assert truth <= gram_defect_upper_bound(a, 0.9) <= 1.5 * truth + 1e-12


def test_large_matrices_are_squared_in_float32_with_its_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.linalg.qr(torch.randn(40, 30, dtype=torch.float64)).Q + 0.01 * torch.randn(40, 30, dtype=torch.float64)
    general = gram_defect_upper_bound(a, 0.9)
    monkeypatch.setattr(orthogonality, "LARGE", 1)
    monkeypatch.setattr(eigenvalues, "LARGE", 1)
    truth = float(np.abs(np.linalg.svd(a.numpy(), compute_uv=False) ** 2 - 0.9).max())
    assert truth <= general <= gram_defect_upper_bound(a, 0.9) <= general * (1 + 30 * 40 * 2.0**-24)


def test_an_estimate_spares_large_matrices_the_proof_that_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.linalg.qr(torch.randn(2, 40, 30, dtype=torch.complex128)).Q
    proofs: list[float] = []

    def counted(matrix: torch.Tensor, square: float) -> float:
        proofs.append(square)
        return gram_defect_upper_bound(matrix, square)

    monkeypatch.setattr(orthogonality, "LARGE", 1)
    monkeypatch.setattr(orthogonality, "gram_defect_upper_bound", counted)
    scale, (low, high) = non_expansive_scale(exact, torch.complex64, counted)
    assert len(proofs) == 1
    sigma = np.linalg.svd((exact * scale).to(torch.complex64).to(torch.complex128).numpy(), compute_uv=False)
    assert 1 - 1e-6 <= low <= sigma.min() <= sigma.max() <= high <= 1


def test_a_defect_below_the_rounding_errors_is_still_bounded() -> None:
    column = torch.tensor([[1.0], [1e-9]], dtype=torch.float64)
    assert Fraction(gram_defect_upper_bound(column)) >= Fraction(1e-9) ** 2


@settings(max_examples=40)
@given(
    st.integers(1, 8),
    st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
    st.integers(0, 99),
)
def test_what_is_nearly_orthogonal_becomes_non_expansive(size: int, dtype: torch.dtype, seed: int) -> None:
    q = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))).Q
    for exact in (q, torch.eye(size, dtype=torch.float64)):
        scale, (low, high) = non_expansive_scale(exact, dtype)
        sigma = np.linalg.svd((exact * scale).to(dtype).double().numpy(), compute_uv=False)
        assert low <= sigma.min() + 1e-14
        assert sigma.max() - 1e-14 <= high <= 1.0
        assert low >= 1 - 8 * size * torch.finfo(dtype).eps


def test_what_is_far_from_orthogonal_is_not_called_non_expansive() -> None:
    _, (low, high) = non_expansive_scale(torch.diag(torch.tensor([2.0, 0.1], dtype=torch.float64)), torch.float64)
    assert low <= 0.1
    assert high >= 2.0
    assert all(map(math.isnan, non_expansive_scale(torch.full((2, 2), math.nan), torch.float32)[1]))


kernels = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(st.integers(1, 4), st.integers(1, 4), kernels, st.floats(0, 0.3), st.integers(0, 99))
@example(1, 1, (1, 3), 0.3, 0)
@example(2, 2, (3, 1), 0.3, 0)
@settings(max_examples=30)
def test_the_defect_of_a_filter_bounds_the_residual_at_every_size(
    rows: int, columns: int, kernel: tuple[int, int], noise: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = noise * torch.randn(rows, columns, *kernel, dtype=torch.float64, generator=generator)
    weight[:, :, kernel[0] // 2, kernel[1] // 2] += torch.eye(rows, columns)
    defect = filter_gram_defect_upper_bound(weight, 0.95)
    for size in (1, 2, 5):
        sigma = np.linalg.svd(dense_jacobian(weight, size, "circular").numpy(), compute_uv=False)
        assert float(np.abs(sigma**2 - 0.95).max()) <= defect + 1e-14
    assert filter_gram_defect_upper_bound(torch.eye(3).view(3, 3, 1, 1), 1.0) < 1e-13
