"""A bound of J^T J by absolute row sums: what AOL and SLL rest on, with sums that are computed in integers.

J^T J is the convolution with G_t = sum_u F_u^T F_(u+t). For any positive q and r_i = sum_(j, t) |G_t[i, j]| q_j / q_i,
J^T J <= diag(r): without a border, with zeros past it, and around a torus of any size.
"""

from itertools import product as choices

import numpy as np
from flint import arb

from skewconv.ball.array import from_floats
from skewconv.ball.exact import Floats, sliced
from skewconv.ball.norms import frobenius
from skewconv.ball.orthogonal import differences

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
