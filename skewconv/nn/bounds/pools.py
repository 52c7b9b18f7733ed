"""The bounds of torch's pooling layers: windows that overlap count a value more than once."""

import math
from collections.abc import Iterable
from fractions import Fraction

from torch import nn

from skewconv.checks import per_axis
from skewconv.errors import ShapeError
from skewconv.nn.bounds.protocol import NoBoundError, Shape, register_bound
from skewconv.rigor import sqrt_up


@register_bound(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
def _avg_pool(module: nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d, shape: Shape) -> float:
    axes = {nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3}[type(module)]
    kernel, stride = per_axis(module.kernel_size, axes, "kernel_size"), per_axis(module.stride, axes, "stride")
    window, overlap = math.prod(kernel), _overlap(kernel, stride, (1,) * axes)
    # ||A||^2 <= (largest row sum) (largest column sum). A window of n values divides by n: rows sum to one at most.
    divisor = getattr(module, "divisor_override", None)
    if divisor is not None:
        return sqrt_up(Fraction(window * overlap, divisor**2))
    padded = module.padding not in (0, (0,) * axes)
    truncated = module.ceil_mode or (padded and not module.count_include_pad)
    return sqrt_up(Fraction(overlap, 1 if truncated else window))


@register_bound(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
def _max_pool(module: nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d, shape: Shape) -> float:
    if module.return_indices:
        raise NoBoundError(module, "it returns indices")
    axes = {nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3}[type(module)]
    kernel, stride = per_axis(module.kernel_size, axes, "kernel_size"), per_axis(module.stride, axes, "stride")
    # The square of each output's change is at most that of one input of its window; an input is in so many windows.
    return sqrt_up(Fraction(_overlap(kernel, stride, per_axis(module.dilation, axes, "dilation"))))


@register_bound(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
def _adaptive_avg_pool(
    module: nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d | nn.AdaptiveAvgPool3d, shape: Shape
) -> float:
    axes = {nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, nn.AdaptiveAvgPool3d: 3}[type(module)]
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


def _overlap(kernel: Iterable[int], stride: Iterable[int], dilation: Iterable[int]) -> int:
    """The most windows that one value can belong to: tap j of window w reads value w s + j d."""
    steps = zip(kernel, stride, dilation, strict=True)
    return math.prod(-(-k // (s // math.gcd(s, d))) for k, s, d in steps)
