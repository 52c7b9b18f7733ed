"""Fourier tables against PyTorch's transforms and against numbers that are known exactly."""

import math

import pytest
import torch

from skewconv.ops.fourier import half_of_frequencies, inverse_transform_table, transform_table, waves

SIZES = [(1,), (2,), (5,), (4, 3), (3, 4), (2, 1, 5), (3, 2, 4)]


@pytest.mark.parametrize("size", SIZES)
def test_the_tables_are_the_real_transform_and_its_inverse(size: tuple[int, ...]) -> None:
    x = torch.randn(size, dtype=torch.float64)
    spectrum = torch.fft.rfftn(x).flatten()
    parts = transform_table(size) @ x.flatten()
    torch.testing.assert_close(torch.complex(*parts.unflatten(0, (2, -1))), spectrum, atol=1e-12, rtol=0)
    assert len(half_of_frequencies(size)) == len(spectrum)
    torch.testing.assert_close(inverse_transform_table(size) @ parts, x.flatten(), atol=1e-13, rtol=0)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 31])
def test_waves_are_those_of_the_transform_at_any_distance(n: int, sign: int) -> None:
    frequencies, positions = torch.arange(n), torch.arange(-3 * n, 3 * n)
    table = waves(frequencies, positions, n, sign)
    angles = [[2 * math.pi * ((f * p) % n) / n for p in positions.tolist()] for f in range(n)]
    exact = [[complex(math.cos(a), sign * math.sin(a)) for a in row] for row in angles]
    torch.testing.assert_close(table, torch.tensor(exact, dtype=torch.complex128), atol=1e-15, rtol=0)
    # A whole turn changes nothing, not even the last bit.
    assert torch.equal(table[:, :n], table[:, n : 2 * n])
