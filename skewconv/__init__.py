"""Orthogonal convolutions from skew-symmetric filters, and networks whose robustness is proved."""

from skewconv import models, nn, ops
from skewconv._version import __version__
from skewconv.frozen import freeze

__all__ = ["__version__", "freeze", "models", "nn", "ops"]
