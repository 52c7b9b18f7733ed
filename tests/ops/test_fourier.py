"""Fourier tables against PyTorch's transforms, and circular convolutions by taps and by frequencies: one function."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from skewconv.ops.convolution import Geometry, convolve
from skewconv.ops.engines.spectral_engine import (
    circular_convolve,
    convolve_by_frequencies,
    multiply_frequencies,
    symbol,
)
from skewconv.ops.fourier import count_of_real_frequencies, distinct_frequencies, half_of, wave_table, waves
from skewconv.ops.spectrum import inverse_transform, transform

SIZES = [(1,), (2,), (5,), (4, 3), (3, 4), (2, 1, 5), (3, 2, 4)]


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


@pytest.mark.parametrize("size", [*SIZES, (4, 4), (1, 1), (2, 2)])
def test_real_frequencies_and_one_of_each_pair_tell_all(size: tuple[int, ...]) -> None:
    x, (alone, paired) = torch.randn(size, dtype=torch.float64), distinct_frequencies(size)
    spectrum, table = torch.fft.rfftn(x).flatten(), wave_table(size)
    assert len(alone) + 2 * len(paired) == math.prod(size)
    assert float(spectrum[alone].imag.abs().max()) < 1e-13
    torch.testing.assert_close(half_of(spectrum[alone].real, spectrum[paired], size), spectrum, atol=1e-12, rtol=0)
    torch.testing.assert_close(table @ table.T, torch.eye(len(table), dtype=torch.float64), atol=1e-13, rtol=0)
    scale = torch.full((len(table),), math.sqrt(2 / math.prod(size))).double()
    scale[: len(alone)] /= math.sqrt(2)
    expected = torch.cat([spectrum[alone].real, torch.view_as_real(spectrum[paired]).flatten()])
    torch.testing.assert_close(table @ x.flatten(), scale * expected, atol=1e-7, rtol=0)


# By one table, by a table for each axis, by an FFT.
WAYS = [
    *SIZES,
    (8, 8),
    (9, 8),
    (12, 7),
    (3, 40),
    (2, 40),
    (1, 63),
    (40, 2),
    (16, 16),
    (17, 65),
    (66, 2),
    (130,),
    (5, 6, 7),
]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("size", WAYS)
def test_every_way_gives_the_same_spectrum_and_leads_back(size: tuple[int, ...], groups: int) -> None:
    x = torch.randn(3, 2 * groups, *size, dtype=torch.float64, requires_grad=True)
    table, alone = wave_table(size), count_of_real_frequencies(size)
    values = (table @ x.flatten(2).permute(2, 0, 1).flatten(1)).view(-1, 3, groups, 2)
    real, pairs = transform(x, groups)
    torch.testing.assert_close(real, values[:alone].transpose(1, 2).flatten(0, 1))
    parts = values[alone:].unflatten(0, (len(pairs) // groups, 2))
    torch.testing.assert_close(pairs, parts.permute(0, 3, 2, 1, 4).flatten(3).flatten(0, 1))
    torch.testing.assert_close(inverse_transform(real, pairs, groups=groups, size=size), x)
    # The gradient of an isometry is its inverse.
    grads = torch.randn_like(real), torch.randn_like(pairs)
    found = torch.autograd.grad((real * grads[0]).sum() + (pairs * grads[1]).sum(), x)[0]
    torch.testing.assert_close(found, inverse_transform(*grads, groups=groups, size=size))


@pytest.mark.parametrize("size", [(8, 8), (16, 16), (32, 32), (40, 66)])
def test_in_half_precision_the_way_there_and_back_keeps_the_norm_of_images(size: tuple[int, int]) -> None:
    x = torch.randn(4, 8, *size).bfloat16()
    real, pairs = transform(x, 1)
    assert real.dtype == pairs.dtype == torch.bfloat16
    back = inverse_transform(real, pairs, groups=1, size=size).float()
    assert float(back.norm()) == pytest.approx(float(x.float().norm()), rel=1e-3)
    assert float((back - x.float()).norm()) < 0.01 * float(x.float().norm())


@pytest.mark.parametrize("size", [(8, 8), (16, 16)])
def test_in_half_precision_gradients_are_those_of_the_maps_as_they_are_scaled(size: tuple[int, int]) -> None:
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(0)
        x = torch.randn(4, 8, *size).to(dtype).requires_grad_()
        weight = torch.randn(6, 8, 3, 3, requires_grad=True)
        symbols = [each[:, 0].mT for each in symbol(weight, Geometry.of((3, 3), "circular", 1, 1), size)]
        y = multiply_frequencies(x, symbols)
        found.append(torch.autograd.grad(y.float().square().sum(), (x, weight)))
    for half, exact in zip(*found, strict=True):
        assert float((half.float() - exact).norm()) < 0.03 * float(exact.norm())


@pytest.mark.parametrize(("size", "kernel"), [((4, 4), (3, 3)), ((5, 4), (3, 1)), ((3, 2), (5, 7)), ((1, 6), (3, 5))])
def test_frequencies_and_taps_agree_with_gradients_also_where_the_kernel_wraps(
    size: tuple[int, int], kernel: tuple[int, int]
) -> None:
    x = torch.randn(3, 4, *size, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 4, *kernel, dtype=torch.float64, requires_grad=True)
    found, expected = convolve_by_frequencies(x, weight), convolve(x, weight, padding_mode="circular")
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(y.sin().sum(), (x, weight)) for y in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kernel", [2, 3, 4])
@pytest.mark.parametrize("shape", [(40, 16, 4, 4), (1, 2, 9, 9), (0, 2, 4, 4)])
def test_whichever_way_is_taken_the_result_is_the_convolution(shape: tuple[int, ...], kernel: int) -> None:
    x, weight = torch.randn(shape), torch.randn(8, shape[1], kernel, kernel)
    torch.testing.assert_close(
        circular_convolve(x, weight), convolve(x, weight, padding_mode="circular"), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize(
    ("shape", "outputs", "kernel"), [((16, 64, 8, 8), 8, 5), ((1, 64, 8, 8), 8, 5), ((2, 4, 11, 11), 4, 3)]
)
def test_the_way_taken_multiplies_no_more_than_the_taps_do(shape: tuple[int, ...], outputs: int, kernel: int) -> None:
    x, weight = torch.randn(shape), torch.randn(outputs, shape[1], kernel, kernel)
    with FlopCounterMode(display=False) as counter:
        circular_convolve(x, weight)
    assert counter.get_total_flops() <= 2 * x.numel() * outputs * kernel**2
    with FlopCounterMode(display=False) as other:
        convolve_by_frequencies(x, weight)
    assert counter.get_total_flops() <= other.get_total_flops()
