"""The spectral engine: with and without the matrix of the polynomial, by matrix and by FFT."""

import pytest
import torch

from skewconv.ops.engines import spectral_engine
from tests.ops.engine_cases import Case, oracle


@pytest.mark.parametrize("batch", [1, 9])
def test_the_spectral_engine_gives_the_same_with_and_without_the_matrix_of_the_polynomial(batch: int) -> None:
    case = Case((4, 3), (3, 3), "circular", inputs=2, outputs=3)
    assert spectral_engine.applies_matrix(batch, case.degree, case.widths) == (batch == 9)
    x, raw = case.image(batch).requires_grad_(), case.filter().requires_grad_()
    expected, found = oracle(case, x, raw), case.apply("spectral", x, raw)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    direction = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, raw), direction)
    for left, right in zip(torch.autograd.grad(found, (x, raw), direction), wanted, strict=True):
        torch.testing.assert_close(left, right, atol=1e-12, rtol=0)


@pytest.mark.parametrize("size", [(17, 16), (300,), (8, 7, 6)])
def test_images_too_large_for_a_transform_by_matrix_use_the_fft(size: tuple[int, ...]) -> None:
    case = Case(size, (3,) * len(size), "circular", channels=2, inputs=1, outputs=2)
    assert torch.Size(size).numel() > spectral_engine.MATRIX_PIXELS
    x = case.image().requires_grad_()
    raw = 0.1 * torch.randn(2, 2, *case.kernel, dtype=torch.float64, requires_grad=True)
    by_series, by_frequency = case.apply("convolutions", x, raw), case.apply("spectral", x, raw)
    torch.testing.assert_close(by_frequency, by_series, atol=1e-12, rtol=0)
    direction = torch.randn_like(by_series)
    wanted = torch.autograd.grad(by_series, (x, raw), direction)
    for left, right in zip(torch.autograd.grad(by_frequency, (x, raw), direction), wanted, strict=True):
        torch.testing.assert_close(left, right, atol=1e-10, rtol=0)
