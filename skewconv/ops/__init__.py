"""Pure functions on tensors: the mathematics of skew orthogonal convolutions."""

from skewconv.ops.angles import wrap_angles
from skewconv.ops.dense import dense_jacobian, dense_matrix
from skewconv.ops.filters import skew_filter, split_filter, transpose_filter

__all__ = [
    "dense_jacobian",
    "dense_matrix",
    "skew_filter",
    "split_filter",
    "transpose_filter",
    "wrap_angles",
]
