"""The Lipschitz protocol: a proven l2 bound for every module, or a refusal that names the module."""

from skewconv.nn.bounds import pools, rules  # noqa: F401 (they register the rules of torch's own layers)
from skewconv.nn.bounds.orthogonality import gram_defect, non_expansive
from skewconv.nn.bounds.outward import product_up, round_up, sqrt_up
from skewconv.nn.bounds.protocol import lipschitz_upper_bound, output_shape, register_bound

__all__ = [
    "gram_defect",
    "lipschitz_upper_bound",
    "non_expansive",
    "output_shape",
    "product_up",
    "register_bound",
    "round_up",
    "sqrt_up",
]
