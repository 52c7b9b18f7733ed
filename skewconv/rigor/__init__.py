"""What is proven in floating point, in one vocabulary; everything that certifies stands on it.

========================  ==============================================================================
a name that ends in       means
========================  ==============================================================================
``_up``, ``_down``        rounded so: never below, never above the exact value (:mod:`.directed`)
``_upper_bound``          a proven bound of a norm, an eigenvalue or a defect, rounding included
``_UP``, ``_DOWN``        a factor that covers the rounding of what it multiplies
``gamma``                 Higham's gamma_n: the relative error of n operations in any order (:mod:`.summation`)
========================  ==============================================================================

The modules: directed rounding (``directed``), errors of sums (``summation``), norms at every scale (``vectors``),
tensors without rounding (``doubles``), verified eigenvalues (``eigenvalues``, ``squaring``, ``spectra``), absolute
values (``absolute``), how far from orthogonal (``orthogonality``), polynomials (``exact_polynomials``) and Bessel
functions (``bessel_functions``).
"""

from skewconv.rigor.absolute import absolute_norm_upper_bound
from skewconv.rigor.bessel_functions import Enclosure, bessel, bessel_majorant_up, bessel_tail_up
from skewconv.rigor.directed import (
    BILLIONS_UP,
    ERROR_UP,
    FEW_ROUNDINGS_UP,
    MILLIONS_DOWN,
    MILLIONS_UP,
    UNIT_ROUNDOFF,
    factor_down,
    factor_up,
    ldexp_up,
    product_up,
    round_down,
    round_up,
    sqrt_down,
    sqrt_up,
)
from skewconv.rigor.doubles import in_double, power_of_two_scaled
from skewconv.rigor.eigenvalues import largest_eigenvalue_upper_bound, small_gram, spectral_norm_upper_bound
from skewconv.rigor.exact_polynomials import chebyshev_to_powers, maximum_up, squared_modulus
from skewconv.rigor.orthogonality import (
    filter_gram_defect_upper_bound,
    gram_defect_upper_bound,
    non_expansive_scale,
)
from skewconv.rigor.spectra import hermitian_eigenvalues
from skewconv.rigor.squaring import squaring_upper_bound, squarings_for
from skewconv.rigor.summation import gamma, gram_error_upper_bound, norm_factor_up
from skewconv.rigor.vectors import vector_norm_up

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
