"""The Lipschitz protocol: a proven l2 bound for every module, or a refusal that names the module."""

from skewconv.nn.bounds import pools, rules  # noqa: F401 (they register the rules of torch's own layers)
from skewconv.nn.bounds.protocol import lipschitz_upper_bound, output_shape, register_bound

__all__ = [
    "lipschitz_upper_bound",
    "output_shape",
    "register_bound",
]
