"""Pure functions on tensors: the mathematics of skew orthogonal convolutions."""

from skewconv.ops.angles import circular_filter, skew_logarithm, wrap_angles
from skewconv.ops.convolution_exponential import conv_exp
from skewconv.ops.dense_matrices import dense_jacobian, dense_matrix
from skewconv.ops.filters import skew_filter, split_filter, transpose_filter
from skewconv.ops.norms import norm_estimate, norm_upper_bound, norm_upper_bound_at
from skewconv.ops.plan import EnginePlan, plan
from skewconv.ops.polynomials import Polynomial, degree_for, gain, polynomial, truncation_error

__all__ = [
    "EnginePlan",
    "Polynomial",
    "circular_filter",
    "conv_exp",
    "degree_for",
    "dense_jacobian",
    "dense_matrix",
    "gain",
    "norm_estimate",
    "norm_upper_bound",
    "norm_upper_bound_at",
    "plan",
    "polynomial",
    "skew_filter",
    "skew_logarithm",
    "split_filter",
    "transpose_filter",
    "truncation_error",
    "wrap_angles",
]
