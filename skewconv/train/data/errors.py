"""What can go wrong with data, and how an optional package is asked for."""

import importlib
from typing import Any

from skewconv.errors import SkewconvError


class DataError(SkewconvError):
    """A dataset that cannot be found, read or kept."""


class ArchiveError(DataError):
    """An archive, or a file in it, that is damaged, hostile, or not what its name says."""


class UnreachableError(DataError):
    """A server that did not answer: the network, not the data, is at fault."""


def optional(module: str, package: str) -> Any:
    """Import a module of the ``train`` extra, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"{package} is needed here and is missing: pip install 'skewconv[train]'") from error
