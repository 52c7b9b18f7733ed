"""Proofs in floating point: the basis of every certificate.

========================  ==============================================================================
a name that ends in       means
========================  ==============================================================================
``_up``, ``_down``        rounded so: never below, never above the exact value (:mod:`.rounding`)
``_upper_bound``          a proven bound of a norm, an eigenvalue or a defect, rounding included
``_UP``, ``_DOWN``        a factor that covers the rounding of what it multiplies
``gamma``                 Higham's gamma_n: the relative error of n operations in any order (:mod:`.rounding`)
========================  ==============================================================================
"""

from skewconv.rigor.eigenvalues import largest_eigenvalue_upper_bound as largest_eigenvalue_upper_bound
from skewconv.rigor.eigenvalues import small_gram as small_gram
from skewconv.rigor.eigenvalues import spectral_norm_upper_bound as spectral_norm_upper_bound
from skewconv.rigor.eigenvalues import squaring_upper_bound as squaring_upper_bound
from skewconv.rigor.eigenvalues import squarings_for as squarings_for
from skewconv.rigor.exact_polynomials import bessel as bessel
from skewconv.rigor.exact_polynomials import bessel_tail_up as bessel_tail_up
from skewconv.rigor.exact_polynomials import chebyshev_to_powers as chebyshev_to_powers
from skewconv.rigor.exact_polynomials import maximum_up as maximum_up
from skewconv.rigor.exact_polynomials import squared_modulus as squared_modulus
from skewconv.rigor.orthogonality import absolute_norm_upper_bound as absolute_norm_upper_bound
from skewconv.rigor.orthogonality import filter_gram_defect_upper_bound as filter_gram_defect_upper_bound
from skewconv.rigor.orthogonality import gram_defect_upper_bound as gram_defect_upper_bound
from skewconv.rigor.orthogonality import non_expansive_scale as non_expansive_scale
from skewconv.rigor.rounding import BILLIONS_UP as BILLIONS_UP
from skewconv.rigor.rounding import ERROR_UP as ERROR_UP
from skewconv.rigor.rounding import FEW_ROUNDINGS_UP as FEW_ROUNDINGS_UP
from skewconv.rigor.rounding import MILLIONS_DOWN as MILLIONS_DOWN
from skewconv.rigor.rounding import MILLIONS_UP as MILLIONS_UP
from skewconv.rigor.rounding import UNIT_ROUNDOFF as UNIT_ROUNDOFF
from skewconv.rigor.rounding import factor_down as factor_down
from skewconv.rigor.rounding import factor_up as factor_up
from skewconv.rigor.rounding import gamma as gamma
from skewconv.rigor.rounding import in_double as in_double
from skewconv.rigor.rounding import ldexp_up as ldexp_up
from skewconv.rigor.rounding import power_of_two_scaled as power_of_two_scaled
from skewconv.rigor.rounding import product_up as product_up
from skewconv.rigor.rounding import round_down as round_down
from skewconv.rigor.rounding import round_up as round_up
from skewconv.rigor.rounding import sqrt_down as sqrt_down
from skewconv.rigor.rounding import sqrt_up as sqrt_up
from skewconv.rigor.rounding import vector_norm_up as vector_norm_up
