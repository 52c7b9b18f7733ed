"""Orthogonal convolutions from skew-symmetric filters, and networks whose robustness is proved."""

from typing import TYPE_CHECKING, Any

from skewconv import certify, models, nn, ops
from skewconv._version import __version__
from skewconv.certify import predict
from skewconv.frozen import freeze

if TYPE_CHECKING:
    from skewconv.train.run import load

__all__ = ["__version__", "certify", "freeze", "load", "models", "nn", "ops", "predict"]


def __getattr__(name: str) -> Any:
    # Loading runs needs the extra "train", which importing the core must not.
    if name == "load":
        from skewconv.train.run import load

        return load
    raise AttributeError(f"module 'skewconv' has no attribute {name!r}")
