"""Skew orthogonal convolutions: everything that is known of SOC and SUC in one room.

A filter is stored as its free half (:mod:`free_half`), scaled to its norm (:mod:`filter_norm`, :mod:`scaled_filter`) by
the filter's module (:mod:`skew_filter`), and exponentiated by the layer (:mod:`skew_conv`), whose polynomial
:mod:`accuracy` chooses. :mod:`layers` names the nine layers; :mod:`inversion` and :mod:`log_determinant` are what flows
ask of them.
"""

from skewconv.nn.soc.layers import (
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
from skewconv.nn.soc.log_determinant import LogAbsDet

__all__ = [
    "LogAbsDet",
    "SOC1d",
    "SOC2d",
    "SOC3d",
    "SOCTranspose1d",
    "SOCTranspose2d",
    "SOCTranspose3d",
    "SUC1d",
    "SUC2d",
    "SUC3d",
]
