"""Whether the matrices and filters of a proof are those that the stored weights define, derived here a second time.

This says which function was proven, not that anything holds of it: float64 does, and a tolerance.
"""

import math

import numpy as np

from skewconv.ball.exact import Floats

_TOLERANCE = 1e-9


def same_up_to_scale(operator: Floats, raw: Floats) -> bool:
    """Whether an array is a positive multiple of another, to a part in 10^9 of its largest entry.

    >>> same_up_to_scale(np.array([1.0, 2.0]), np.array([3.0, 6.0]))
    True
    """
    if not raw.any():
        return not operator.any()
    raw = raw / np.abs(raw).max()
    scale = float((operator * raw).sum() / (raw * raw).sum())
    return scale > 0 and same(operator, scale * raw)


def same(operator: Floats, wanted: Floats) -> bool:
    """Whether two arrays agree to a part in 10^9 of the largest entry."""
    return operator.shape == wanted.shape and bool(
        np.abs(operator - wanted).max(initial=0.0) <= _TOLERANCE * np.abs(wanted).max(initial=0.0)
    )


def inverse_roots_of_row_sums(raw: Floats) -> Floats:
    """D of AOL, (c_in,): r^(-1/2) of the absolute row sums r of the Gram operator of a filter (c_out, c_in, k, k)."""
    height, width = raw.shape[2:]
    sums = np.zeros(raw.shape[1])
    for down in range(1 - height, height):
        for right in range(1 - width, width):
            rows, columns = (
                range(max(0, -down), min(height, height - down)),
                range(max(0, -right), min(width, width - right)),
            )
            pairs = [(raw[:, :, i, j], raw[:, :, i + down, j + right]) for i in rows for j in columns]
            sums += np.abs(np.sum([one.T @ other for one, other in pairs], axis=0)).sum(1)
    return np.asarray(np.where(sums > 0, 1 / np.sqrt(np.where(sums > 0, sums, 1.0)), 1.0))


def skew_matrices(packed: Floats, channels: int) -> Floats:
    """(groups, n, n) skew from the packed triangle below the diagonal, (groups, n - 1 or n, n // 2).

    For n = 4 the rectangle holds columns 0 and 1 of the triangle, and column 2 in the corner that they leave free:

        a_10  a_32         .  .  .  .
        a_20  a_21   <->   a_10  .  .  .
        a_30  a_31         a_20  a_21  .  .
                           a_30  a_31  a_32  .
    """
    half, odd = channels // 2, channels % 2
    lower = np.zeros((len(packed), channels, channels))
    i, j = (np.asarray(part) for part in np.indices(packed.shape[1:]))
    first = i - j >= odd
    lower[:, i[first] + 1 - odd, j[first]] = packed[:, first]
    lower[:, half + odd + j[~first], half + i[~first]] = packed[:, ~first]
    return np.asarray(lower - lower.swapaxes(1, 2))


def skew_filter(free: Floats | None, packed: Floats, kernel: tuple[int, ...], channels: int) -> Floats:
    """The skew filter (groups n, n, *kernel) of odd sizes, from the taps after its centre and the centre's triangle."""
    groups, count = len(packed), math.prod(kernel)
    taps = np.zeros((count, groups, channels, channels))
    taps[count // 2] = skew_matrices(packed, channels)
    if free is not None:
        after = free.reshape(-1, groups, channels, channels)
        taps[count // 2 + 1 :] = after
        taps[: count // 2] = -after[::-1].swapaxes(2, 3)
    return np.ascontiguousarray(
        taps.reshape(*kernel, groups * channels, channels).transpose(len(kernel), len(kernel) + 1, *range(len(kernel)))
    )


def exponential_rows(generator: Floats, outputs: int, inputs: int) -> Floats:
    """The first rows and columns (outputs, inputs) of exp(A) for the skew A of size max(outputs, inputs)."""
    size = max(outputs, inputs)
    skew = skew_matrices(generator[None], size)[0]
    few, sign = (inputs, 1.0) if inputs <= outputs else (outputs, -1.0)
    steps = max(1, math.ceil(float(np.abs(skew).sum(1).max())))
    step, columns = sign * skew / steps, np.eye(size, few)
    for _ in range(steps):
        term = total = columns
        for k in range(1, 25):
            term = step @ term / k
            total = total + term
        columns = total
    return columns[:outputs, :inputs] if inputs <= outputs else np.ascontiguousarray(columns[:inputs].T)
