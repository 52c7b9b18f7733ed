"""Higham's gamma_n, and the errors of sums, norms and products that it bounds.

Reference: N. J. Higham, Accuracy and Stability of Numerical Algorithms, second edition, 2002.
"""

from skewconv.rigor.directed import BILLIONS_UP, FEW_ROUNDINGS_UP, UNIT_ROUNDOFF


def gamma(operations: int, *, is_complex: bool = False) -> float:
    """gamma_n = n u / (1 - n u), rounded up: the relative error of n operations in any order (Lemma 3.1).

    A complex product errs by sqrt(2) gamma_2 < 3 u and a complex sum by u (Lemma 3.5): 4 u covers both.

    >>> gamma(10) > 10 * 2**-53, gamma(10, is_complex=True) > 40 * 2**-53
    (True, True)
    """
    error = operations * UNIT_ROUNDOFF * (4 if is_complex else 1)
    return error / (1 - error) * FEW_ROUNDINGS_UP


def norm_factor_up(entries: int, safety: int = 1) -> float:
    """1 + s gamma_{n + 8}: it lifts a computed Euclidean norm of n real entries above the exact one.

    Args:
        entries: n.
        safety: s, 2 where the entries are rounded themselves, such as differences, or where the norm is squared later.
    """
    return 1 + safety * gamma(entries + 8)


def gram_error_upper_bound(inner: int, frobenius_square: float, *, is_complex: bool) -> float:
    """gamma_{k + 4} ||A||_F^2 >= ||fl(A^H A) - A^H A||: gamma_k |A|^H |A| bounds it entry by entry (section 3.5).

    Args:
        inner: k, the length of the sums.
        frobenius_square: ||A||_F^2 as computed in float64.
    """
    return gamma(inner + 4, is_complex=is_complex) * frobenius_square * BILLIONS_UP
