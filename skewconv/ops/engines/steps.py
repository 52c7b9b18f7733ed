"""The steps that an engine takes for a polynomial, made once and kept."""

from functools import lru_cache

import torch

from skewconv.ops.polynomials import Polynomial
from skewconv.ops.series import SERIES, Recurrence


def recurrence(polynomial: Polynomial) -> Recurrence:
    """The recurrence of p(J)."""
    return SERIES[polynomial.series].recurrence(polynomial.coefficients, polynomial.norm_bound)


def reversible_recurrence(polynomial: Polynomial) -> Recurrence:
    """The same polynomial by a recurrence that can also be run backwards."""
    return recurrence(polynomial).reversible(polynomial.norm_bound)


_kept_recurrence = lru_cache(maxsize=1024)(recurrence)
_kept_reversible_recurrence = lru_cache(maxsize=1024)(reversible_recurrence)


def steps_of(polynomial: Polynomial, *, inverse: bool, recompute: bool) -> Recurrence:
    """The recurrence of p(J), or of p(-J); one that can be run backwards if terms are to be recomputed."""
    if torch.compiler.is_compiling():
        # The compiler looks through a cache and warns of it; and it has its own ways to save memory.
        steps = recurrence(polynomial)
    else:
        steps = _kept_reversible_recurrence(polynomial) if recompute else _kept_recurrence(polynomial)
    return steps.adjoint() if inverse else steps
