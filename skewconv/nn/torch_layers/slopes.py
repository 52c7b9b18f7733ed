"""PyTorch's activations: the largest slope of each."""

from torch import nn

from skewconv.nn.protocol import NoBoundError, Shape
from skewconv.rigor import in_double


def one(module: nn.Module, shape: Shape) -> float:
    """Permutations, cuts, padding, and activations whose slope is at most one."""
    return 1.0


def sigmoid(module: nn.Sigmoid, shape: Shape) -> float:
    """The slope at zero."""
    return 0.25


def silu(module: nn.SiLU, shape: Shape) -> float:
    """The derivative's maximum is 1.09984, at x = 2.39936."""
    return 1.1


def gelu(module: nn.GELU, shape: Shape) -> float:
    """The derivative's maximum is 1.12890 at x = sqrt(2), and 1.12904 for the approximation by tanh."""
    return 1.13


def leaky_relu(module: nn.LeakyReLU, shape: Shape) -> float:
    """One, or the slope of the negative side."""
    return _at_least_one(abs(module.negative_slope))


def prelu(module: nn.PReLU, shape: Shape) -> float:
    """One, or the largest slope learned."""
    return _at_least_one(float(in_double(module.weight).abs().max()))


def elu(module: nn.ELU, shape: Shape) -> float:
    """One, or the slope at zero from below."""
    return _at_least_one(abs(module.alpha))


def celu(module: nn.CELU, shape: Shape) -> float:
    """One: exp(x / alpha) is below one where x is negative."""
    if not module.alpha > 0:
        raise NoBoundError(module, f"with alpha={module.alpha} <= 0 its slope grows without limit")
    return 1.0


def selu(module: nn.SELU, shape: Shape) -> float:
    """scale * alpha = 1.0507009873... * 1.6732632423..."""
    return 1.7581


def softmax(module: nn.Softmax, shape: Shape) -> float:
    """diag(p) - p p^T has the Gershgorin bound 2 p_i (1 - p_i)."""
    return 0.5


def _at_least_one(slope: float) -> float:
    return 1.0 if slope <= 1.0 else slope  # max(1.0, nan) would be 1.0
