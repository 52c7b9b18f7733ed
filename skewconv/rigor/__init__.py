"""Proofs in floating point: the basis of every certificate.

========================  ==============================================================================
a name that ends in       means
========================  ==============================================================================
``_up``, ``_down``        rounded so: never below, never above the exact value (:mod:`.rounding`)
``_upper_bound``          a proven bound of a norm, an eigenvalue or a defect, rounding included
``_UP``, ``_DOWN``        a factor that covers the rounding of what it multiplies
``gamma``                 Higham's gamma_n: the relative error of n operations in any order (:mod:`.rounding`)
========================  ==============================================================================

The modules: directed rounding, errors of sums and norms at every scale (``rounding``), verified eigenvalues and norms
(``eigenvalues``), distance from orthogonal (``orthogonality``), polynomials and Bessel functions
(``exact_polynomials``).
"""

from skewconv.rigor.eigenvalues import (
    hermitian_eigenvalues,
    largest_eigenvalue_upper_bound,
    small_gram,
    spectral_norm_upper_bound,
    squaring_upper_bound,
    squarings_for,
)
from skewconv.rigor.exact_polynomials import (
    Enclosure,
    bessel,
    bessel_majorant_up,
    bessel_tail_up,
    chebyshev_to_powers,
    maximum_up,
    squared_modulus,
)
from skewconv.rigor.orthogonality import (
    absolute_norm_upper_bound,
    filter_gram_defect_upper_bound,
    gram_defect_upper_bound,
    non_expansive_scale,
)
from skewconv.rigor.rounding import (
    BILLIONS_UP,
    ERROR_UP,
    FEW_ROUNDINGS_UP,
    MILLIONS_DOWN,
    MILLIONS_UP,
    UNIT_ROUNDOFF,
    factor_down,
    factor_up,
    gamma,
    gram_error_upper_bound,
    in_double,
    ldexp_up,
    norm_factor_up,
    power_of_two_scaled,
    product_up,
    round_down,
    round_up,
    sqrt_down,
    sqrt_up,
    vector_norm_up,
)

__all__ = [
    "BILLIONS_UP",
    "ERROR_UP",
    "FEW_ROUNDINGS_UP",
    "MILLIONS_DOWN",
    "MILLIONS_UP",
    "UNIT_ROUNDOFF",
    "Enclosure",
    "absolute_norm_upper_bound",
    "bessel",
    "bessel_majorant_up",
    "bessel_tail_up",
    "chebyshev_to_powers",
    "factor_down",
    "factor_up",
    "filter_gram_defect_upper_bound",
    "gamma",
    "gram_defect_upper_bound",
    "gram_error_upper_bound",
    "hermitian_eigenvalues",
    "in_double",
    "largest_eigenvalue_upper_bound",
    "ldexp_up",
    "maximum_up",
    "non_expansive_scale",
    "norm_factor_up",
    "power_of_two_scaled",
    "product_up",
    "round_down",
    "round_up",
    "small_gram",
    "spectral_norm_upper_bound",
    "sqrt_down",
    "sqrt_up",
    "squared_modulus",
    "squaring_upper_bound",
    "squarings_for",
    "vector_norm_up",
]
