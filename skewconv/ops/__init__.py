"""Pure functions on tensors: the mathematics of skew orthogonal convolutions."""

from skewconv.ops.angles import circular_filter as circular_filter
from skewconv.ops.angles import skew_logarithm as skew_logarithm
from skewconv.ops.angles import wrap_angles as wrap_angles
from skewconv.ops.convolution import skew_filter as skew_filter
from skewconv.ops.convolution import split_filter as split_filter
from skewconv.ops.convolution import transpose_filter as transpose_filter
from skewconv.ops.convolution_exponential import EnginePlan as EnginePlan
from skewconv.ops.convolution_exponential import conv_exp as conv_exp
from skewconv.ops.convolution_exponential import plan as plan
from skewconv.ops.engines.dense_engine import dense_jacobian as dense_jacobian
from skewconv.ops.engines.dense_engine import dense_matrix as dense_matrix
from skewconv.ops.norms import norm_estimate as norm_estimate
from skewconv.ops.norms import norm_upper_bound as norm_upper_bound
from skewconv.ops.norms import norm_upper_bound_at as norm_upper_bound_at
from skewconv.ops.polynomials import Polynomial as Polynomial
from skewconv.ops.polynomials import degree_for as degree_for
from skewconv.ops.polynomials import gain as gain
from skewconv.ops.polynomials import polynomial as polynomial
from skewconv.ops.polynomials import truncation_error as truncation_error
