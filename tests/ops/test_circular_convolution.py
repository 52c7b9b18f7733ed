"""Convolutions around a torus: by taps and by frequencies they are one function, and the cheaper way is taken."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from skewconv.ops.convolution import convolve
from skewconv.ops.fourier import circular_convolve, convolve_by_frequencies


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
    ("shape", "outputs", "kernel"), [((16, 64, 8, 8), 8, 5), ((1, 64, 8, 8), 8, 5), ((2, 4, 32, 32), 4, 3)]
)
def test_the_way_taken_multiplies_no_more_than_the_taps_do(shape: tuple[int, ...], outputs: int, kernel: int) -> None:
    x, weight = torch.randn(shape), torch.randn(outputs, shape[1], kernel, kernel)
    with FlopCounterMode(display=False) as counter:
        circular_convolve(x, weight)
    assert counter.get_total_flops() <= 2 * x.numel() * outputs * kernel**2
    with FlopCounterMode(display=False) as other:
        convolve_by_frequencies(x, weight)
    assert counter.get_total_flops() <= other.get_total_flops()
