"""Norms of matrices bounded by a factorisation that is verified.

A floating-point Cholesky factor L of c^2 I - A A^T is only a guess. The residual R = c^2 I - A A^T - L L^T is computed
in exact integers; then A A^T = c^2 I - L L^T - R <= (c^2 + ||R||) I, whatever L is.

Row sums: J^T J is the convolution with G_t = sum_u F_u^T F_(u+t). For any positive q and
r_i = sum_(j, t) |G_t[i, j]| q_j / q_i, J^T J <= diag(r): without a border, with zeros past it, and around any torus.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product as choices

import numpy as np
from flint import arb

from skewconv.ball.array import BITS, BallArray, from_floats, largest, power_of_two
from skewconv.ball.exact import REMAINDER, Floats, gram_sums, rounded, slice_width, sliced

# A guess of the level that Cholesky in float64 can confirm is this much above the largest eigenvalue, at least.
_SLACK = 1e-11


def spectral_norm_upper_bound(matrix: Floats, target: float | None = None) -> arb:
    """A number that is at least ||A||, and at most ``target`` but for a part in 10^10 where A allows it.

    >>> import numpy as np
    >>> bound = spectral_norm_upper_bound(np.array([[3.0, 0.0], [4.0, 0.0]]))
    >>> bool(bound >= 5), bool(bound < 5.0000000001)
    (True, True)

    Args:
        matrix: (rows, columns), float64, finite.
        target: a norm that A is said to have at most; the largest eigenvalue is looked for only if it has not.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    _, top = math.frexp(float(np.abs(wide).max(initial=0.0)))
    if not wide.any():
        return arb(0)
    wide = np.ldexp(wide, -top)
    square = _square_upper_bound(np.ascontiguousarray(wide), None if target is None else math.ldexp(target, -top))
    # The entries that underflowed, if any.
    return (square.sqrt() * power_of_two(top) + power_of_two(top - 1000)).upper()


def _square_upper_bound(wide: Floats, target: float | None) -> arb:
    gram = wide @ wide.T
    level = None if target is None else target**2 * (1 + _SLACK * math.sqrt(len(wide)))
    factor = None if level is None else _cholesky(gram, level)
    slack = 2.0**-51 * len(wide)
    while factor is None:
        level = float(np.linalg.eigvalsh(gram)[-1]) * (1 + slack)
        factor, slack = _cholesky(gram, level), slack * 4
    assert level is not None
    return arb(level) + _residual_norm(level, wide, factor)


def _cholesky(gram: Floats, level: float) -> Floats | None:
    shifted = -gram
    shifted.flat[:: len(gram) + 1] += level
    try:
        return np.asarray(np.linalg.cholesky(shifted))
    except np.linalg.LinAlgError:
        return None


def _residual_norm(level: float, wide: Floats, factor: Floats) -> arb:
    """At least ||c^2 I - A A^T - L L^T||: the largest sum of a row, and what the balls do not know."""
    wanted = from_floats(level * np.eye(len(factor))[None])
    rest = wanted.plus(gram(wide).scaled(arb(-1))).plus(gram(factor).scaled(arb(-1)))
    # Sums of a few thousand floats, with a margin for their roundings.
    largest = float(np.abs(rest.floats()[0]).sum(1).max()) * (1 + 1e-6)
    return arb(largest) + rest.error


def gram(matrix: Floats) -> BallArray:
    """A A^T as one array (1, rows, rows)."""
    sums, exponent = gram_sums(matrix)
    width = slice_width(matrix.shape[1])
    mantissa, dropped = rounded(sums, width, BITS)
    result = BallArray(mantissa[None], exponent + dropped, arb(0))
    # What was rounded, what was left out, and what was cut off the entries of A: of D with |D| <= r, both A D^T and its
    # transpose, and D D^T.
    left_out = arb(len(matrix)) * (power_of_two(54) + power_of_two(54 + width)) * power_of_two(exponent)
    cut = arb(REMAINDER) * power_of_two(exponent // 2) * arb(matrix.size).sqrt()
    return result.with_error(result.units(2) + left_out + 2 * cut * frobenius(matrix) + cut * cut)


def frobenius(matrix: Floats) -> arb:
    """At least the norm of Frobenius of a matrix whose squares do not overflow."""
    return arb(float(np.sqrt(np.square(matrix).sum())) * (1 + 1e-6))


def nearly_orthogonal_norm_upper_bound(taps: Sequence[Floats], pairs: Sequence[Sequence[tuple[int, int]]]) -> arb:
    """At least ||J||, from ||J||^2 <= s + ||E_0 - s I|| + 2 sum_{t > 0} ||E_t|| in the norm of Frobenius.

    Args:
        taps: matrices F_u (rows, columns).
        pairs: for each t, from t = 0, those (u, v) with v = u + t: E_t = sum F_u^T F_v.
    """
    total = arb(0)
    for t, those in enumerate(pairs):
        left = np.concatenate([taps[u] for u, _ in those])
        right = np.concatenate([taps[v] for _, v in those])
        found = from_floats(np.ascontiguousarray(left.T)[None]).times(sliced(right), frobenius(right))
        if t == 0:
            level = float(np.diag(found.floats()[0]).mean())
            found, total = found.plus(from_floats(-level * np.eye(left.shape[1])[None])), arb(level)
        total += (found.norm() + found.error) * (1 if t == 0 else 2)
    return total.sqrt().upper()


def filter_norm_upper_bound(weight: Floats, target: float | None = None) -> arb:
    """At least ||J|| for the convolution J with a filter, of any image size, zero or circular padding.

    ||J|| <= sqrt(taps) ||B|| for the filter as a matrix B with some of its axes to the left and the others to the
    right: (c_out, k_1, .. | .., k_d, c_in). The reshapes are tried in turn until one meets the target.

    Args:
        weight: (c_out, c_in, *kernel), of one group.
        target: what ||J|| is said to be at most.

    Reference: Singla, Feizi, "Fantastic Four: differentiable bounds on singular values of convolution layers", 2021.
    """
    kernel = weight.shape[2:]
    root = math.sqrt(math.prod(kernel))
    moved = np.moveaxis(weight, 1, -1)
    found: list[arb] = []
    for rows in _splits(weight.shape):
        matrix = moved.reshape(rows, -1)
        if target is not None and not found and not _plausible(matrix, target / root):
            continue
        found.append(spectral_norm_upper_bound(matrix, None if target is None else target / root))
        if target is not None and bool(found[-1] * arb(math.prod(kernel)).sqrt() <= target * (1 + 1e-9)):
            break
    if not found:
        found = [spectral_norm_upper_bound(moved.reshape(rows, -1)) for rows in _splits(weight.shape)]
    return _least(found) * arb(math.prod(kernel)).sqrt()


def _splits(shape: tuple[int, ...]) -> list[int]:
    """How many rows each reshape has: c_out, c_out k_1, c_out k_1 k_2, ... without the last axis of the kernel."""
    kernel = shape[2:]
    return [shape[0] * math.prod(kernel[:j]) for j in range(max(1, len(kernel)))]


def _plausible(matrix: Floats, target: float) -> bool:
    """Whether a few steps of power iteration leave it possible that ||A|| <= target: spares a larger computation."""
    vector = np.ones(matrix.shape[1])
    size = 0.0
    for _ in range(30):
        image = matrix @ vector
        vector = matrix.T @ image
        size = float(np.linalg.norm(vector))
        if size == 0.0:
            return True
        vector /= size
    return math.sqrt(size) <= target * (1 + 1e-9)


def _least(values: list[arb]) -> arb:
    result = values[0]
    for value in values[1:]:
        result = value if bool(value < result) else result
    return result


# Roundings of an angle of a few turns, of its cosine or sine, and of a product; in units of 2^-53.
_ROUNDINGS = 80


def torus_norm_upper_bound(weight: Floats, torus: tuple[int, ...], target: float | None = None) -> arb:
    """At least ||J|| for a filter of one group on a torus, or on any image that lies in one with room for its taps.

    J is unitarily equivalent to its symbols S(w) = sum_t W_t e^(-i w t) at the frequencies of the torus. Of S(w) and
    S(-w), which are conjugate, one is looked at, as the real matrix [[Re S, -Im S], [Im S, Re S]] of the same norm.

    Args:
        weight: (c_out, c_in, *kernel), float64.
        torus: its sizes.
        target: what ||J|| is said to be at most, if that is known.
    """
    error = (
        2.0**-52 * (_ROUNDINGS + weight[0, 0].size) * np.linalg.norm(np.abs(weight).sum(tuple(range(2, weight.ndim))))
    )
    norms = [spectral_norm_upper_bound(symbol, target) for symbol in _symbols(weight, torus)]
    return (largest(norms) + arb(float(error) * (1 + 1e-6))).upper()


def _symbols(weight: Floats, torus: tuple[int, ...]) -> Iterator[Floats]:
    kernel = weight.shape[2:]
    taps = np.stack(np.meshgrid(*(np.arange(k) - k // 2 for k in kernel), indexing="ij"), -1).reshape(-1, len(kernel))
    flat = weight.reshape(*weight.shape[:2], -1)
    for frequency in np.ndindex(*torus):
        mirrored = tuple(-f % n for f, n in zip(frequency, torus, strict=True))
        if mirrored < frequency:
            continue
        # Reduced before it is divided, so that the angle is of a few turns at most.
        turns = sum((taps[:, j] * f % n) / n for j, (f, n) in enumerate(zip(frequency, torus, strict=True)))
        real, imaginary = flat @ np.cos(2 * np.pi * turns), flat @ -np.sin(2 * np.pi * turns)
        yield np.block([[real, -imaginary], [imaginary, real]])


_POWER_STEPS = 60


def absolute_gram(weight: Floats) -> tuple[Floats, arb]:
    """(A, e): sum_t |G_t| without its error (c_in, c_in), rounded up, and the error: a bound of sum_t ||error of G_t||.

    Args:
        weight: F, (c_out, c_in, k, k).
    """
    places = list(choices(*map(range, weight.shape[2:])))
    taps = [weight[:, :, i, j] for i, j in places]
    total, error = np.zeros((weight.shape[1],) * 2), arb(0)
    for number, those in enumerate(differences(places)):
        left, right = (np.concatenate([taps[pair[side]] for pair in those]) for side in (0, 1))
        found = from_floats(np.ascontiguousarray(left.T)[None]).times(sliced(right), frobenius(right))
        size = np.abs(found.floats()[0])
        # G_(-t) is the transpose of G_t.
        total += size if number == 0 else size + size.T
        error += found.error * (1 if number == 0 else 2)
    # Sums of numbers that are not negative, so that each rounding is a share of the sum.
    return total * (1 + (2 * len(places) ** 2 + 4) * 2.0**-52), error


def scaled_gram_upper_bound(weight: Floats, scale: Floats | None = None, q: Floats | None = None) -> arb:
    """At least ||S^(1/2) J^T J S^(1/2)|| for a diagonal S >= 0, the identity by default: the largest s_i r_i.

    >>> bound = scaled_gram_upper_bound(np.array([[[[1.0, -2.0]]]]))
    >>> bool(bound >= 9), bool(bound < 9.000001)
    (True, True)

    Args:
        weight: F, (c_out, c_in, k, k).
        scale: the diagonal of S, (c_in,).
        q: (c_in,), positive; where it comes from does not matter. Found by power steps by default.
    """
    sums, error = absolute_gram(weight)
    s = np.ones(len(sums)) if scale is None else scale
    best = _largest(sums, s, np.ones(len(sums)))
    for guess in _leading(sums, s) if q is None else [q]:
        best = best.min(_largest(sums, s, guess))
    return (best + arb(float(s.max())) * error).upper()


def _largest(sums: Floats, s: Floats, q: Floats) -> arb:
    """max_i s_i (A q)_i / q_i, rounded up."""
    if not (np.isfinite(q).all() and (q > 0).all() and (s >= 0).all()):
        return arb("inf")
    found = s * ((sums @ q) / q)
    return arb(float(found.max()) * (1 + (len(q) + 8) * 2.0**-52))


def _leading(sums: Floats, s: Floats) -> list[Floats]:
    """Guesses at the best q: half of each power step keeps every entry positive."""
    q = np.ones(len(sums))
    for _ in range(_POWER_STEPS):
        moved = s * (sums @ q)
        if not moved.max() > 0:
            break
        q = q / q.max() + moved / moved.max()
    return [q]


def differences(places: Sequence[tuple[int, ...]]) -> list[list[tuple[int, int]]]:
    """For each difference of two places, one of t and -t, the pairs of numbers that have it; first that of t = 0."""
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for u, here in enumerate(places):
        for v, there in enumerate(places):
            difference = tuple(b - a for a, b in zip(here, there, strict=True))
            if difference >= (0,) * len(difference):
                found.setdefault(difference, []).append((u, v))
    return [found[difference] for difference in sorted(found)]
