"""Orthogonal convolutions from skew-symmetric filters, and networks whose robustness is proved."""

from skewconv import models, nn, ops
from skewconv._version import __version__

__all__ = ["__version__", "models", "nn", "ops"]
