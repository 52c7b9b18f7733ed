"""Thin modules on the functional core, each of which states a provable Lipschitz bound."""

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
