"""Thin modules on the functional core, each with ``forward`` and ``lower``: see :mod:`skewconv.nn.lowering`."""

from skewconv.nn.aol import AOL2d
from skewconv.nn.basic_layers import GroupSort, Householder, InvertibleDownsample, MaxMin, Normalize
from skewconv.nn.batch_centering import BatchCentering
from skewconv.nn.bcop import BCOP2d
from skewconv.nn.bounds import register_bound
from skewconv.nn.cayley import Cayley2d
from skewconv.nn.linear import NormalizedLinear, OrthogonalLinear
from skewconv.nn.lowering import lipschitz_upper_bound, lower
from skewconv.nn.proven_norm import proven_norm
from skewconv.nn.residual_conv import CPL2d, SLL2d
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
    "AOL2d",
    "BCOP2d",
    "BatchCentering",
    "CPL2d",
    "Cayley2d",
    "GroupSort",
    "Householder",
    "InvertibleDownsample",
    "MaxMin",
    "Normalize",
    "NormalizedLinear",
    "OrthogonalLinear",
    "SLL2d",
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
    "lower",
    "proven_norm",
    "register_bound",
]
