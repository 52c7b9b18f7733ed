"""PyTorch's pooling layers: windows that overlap count a value more than once."""

import math
from collections.abc import Iterable
from fractions import Fraction

from torch import nn

from skewconv.checks import per_axis
from skewconv.errors import ShapeError
from skewconv.nn.protocol import Float64Program, Growth, NoBoundError, Shape, lipschitz_upper_bound, module_program
from skewconv.rigor import ERROR_UP, gamma, sqrt_up

_AXES: dict[type[nn.Module], int] = {
    nn.AvgPool1d: 1,
    nn.AvgPool2d: 2,
    nn.AvgPool3d: 3,
    nn.MaxPool1d: 1,
    nn.MaxPool2d: 2,
    nn.MaxPool3d: 3,
    nn.AdaptiveAvgPool1d: 1,
    nn.AdaptiveAvgPool2d: 2,
    nn.AdaptiveAvgPool3d: 3,
}


def avg_pool_bound(module: nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d, shape: Shape) -> float:
    """||A||^2 <= (largest row sum) (largest column sum)."""
    axes = _AXES[type(module)]
    kernel, stride = per_axis(module.kernel_size, axes, "kernel_size"), per_axis(module.stride, axes, "stride")
    window, overlap = math.prod(kernel), _overlap(kernel, stride, (1,) * axes)
    # A window of n values divides by n: rows sum to one at most.
    divisor = getattr(module, "divisor_override", None)
    if divisor is not None:
        return sqrt_up(Fraction(window * overlap, divisor**2))
    padded = module.padding not in (0, (0,) * axes)
    truncated = module.ceil_mode or (padded and not module.count_include_pad)
    return sqrt_up(Fraction(overlap, 1 if truncated else window))


def max_pool_bound(module: nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d, shape: Shape) -> float:
    """The root of the number of windows that a value can be the maximum of."""
    if module.return_indices:
        raise NoBoundError(module, "it returns indices")
    axes = _AXES[type(module)]
    kernel, stride = per_axis(module.kernel_size, axes, "kernel_size"), per_axis(module.stride, axes, "stride")
    # The square of each output's change is at most that of one input of its window; an input is in so many windows.
    return sqrt_up(Fraction(_overlap(kernel, stride, per_axis(module.dilation, axes, "dilation"))))


def adaptive_avg_pool_bound(
    module: nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d | nn.AdaptiveAvgPool3d, shape: Shape
) -> float:
    """||A||^2 <= largest column sum, as rows sum to one; axis by axis."""
    axes = _AXES[type(module)]
    if len(shape) != axes + 1:
        raise ShapeError(f"{type(module).__name__} takes inputs (c, *size) with {axes} spatial axes, got {shape}")
    wanted = module.output_size
    sizes = (wanted,) * axes if wanted is None or isinstance(wanted, int) else tuple(wanted)
    square = Fraction(1)
    for n, out in zip(shape[1:], sizes, strict=True):
        columns = [Fraction(0)] * n
        for i in range(n if out is None else out):
            start, end = i * n // (out or n), -(-(i + 1) * n // (out or n))
            for j in range(start, end):
                columns[j] += Fraction(1, end - start)
        square *= max(columns)
    return sqrt_up(square)


def avg_pool_program(module: nn.Module, shape: Shape) -> Float64Program:
    """The weights are not negative, so || |A| || = ||A||; no window is larger than the image and its padding."""
    # Images may come without channels: a batch of them is then read as one image with as many.
    window = math.prod(shape[-_AXES[type(module)] :]) * 4
    error = gamma(window + 4) * lipschitz_upper_bound(module, shape)
    return module_program(module, shape, Growth(error, 0.0).times(ERROR_UP))


def _overlap(kernel: Iterable[int], stride: Iterable[int], dilation: Iterable[int]) -> int:
    """The most windows that one value can belong to: tap j of window w reads value w s + j d."""
    steps = zip(kernel, stride, dilation, strict=True)
    return math.prod(-(-k // (s // math.gcd(s, d))) for k, s, d in steps)
