"""Thin modules on the functional core, each of which states a provable Lipschitz bound."""

from skewconv.nn.activations import GroupSort, Householder, MaxMin
from skewconv.nn.bcop import BCOP2d
from skewconv.nn.bounds import lipschitz_upper_bound, register_bound
from skewconv.nn.cayley import Cayley2d
from skewconv.nn.downsample import InvertibleDownsample
from skewconv.nn.linear import NormalizedLinear, OrthogonalLinear
from skewconv.nn.normalize_images import Normalize
from skewconv.nn.orthogonalize import orthogonalize
from skewconv.nn.soc import (
    SOC1d,
    SOC2d,
    SOC3d,
    SOCTranspose1d,
    SOCTranspose2d,
    SOCTranspose3d,
    SUC1d,
    SUC2d,
    SUC3d,
)

__all__ = [
    "BCOP2d",
    "Cayley2d",
    "GroupSort",
    "Householder",
    "InvertibleDownsample",
    "MaxMin",
    "Normalize",
    "NormalizedLinear",
    "OrthogonalLinear",
    "SOC1d",
    "SOC2d",
    "SOC3d",
    "SOCTranspose1d",
    "SOCTranspose2d",
    "SOCTranspose3d",
    "SUC1d",
    "SUC2d",
    "SUC3d",
    "lipschitz_upper_bound",
    "orthogonalize",
    "register_bound",
]
