"""Orthogonal convolutions from skew-symmetric filters, and networks whose robustness is proven."""

import importlib
from typing import TYPE_CHECKING, Any

from skewconv._version import __version__

if TYPE_CHECKING:
    from skewconv import certify, export, foreign, models, nn, ops, train
    from skewconv.certify.predict import predict
    from skewconv.frozen import freeze
    from skewconv.train.data.images import preprocess
    from skewconv.train.run import load

__all__ = [
    "__version__",
    "certify",
    "export",
    "foreign",
    "freeze",
    "load",
    "models",
    "nn",
    "ops",
    "predict",
    "preprocess",
    "train",
]

# The other public names are modules. All are imported when they are first used: the command line answers
# --version or a mistyped path without torch, and the core needs none of the packages of training.
_FUNCTIONS = {
    "freeze": "skewconv.frozen",
    "load": "skewconv.train.run",
    "predict": "skewconv.certify.predict",
    "preprocess": "skewconv.train.data.images",
}


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        value = globals()[name] = getattr(importlib.import_module(_FUNCTIONS[name]), name)
        return value
    if name in __all__:
        return importlib.import_module(f"skewconv.{name}")
    raise AttributeError(f"module 'skewconv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
