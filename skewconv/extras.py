"""Packages that only some uses need: one way to ask for them, and one message where they are missing."""

import importlib
from typing import Any

from skewconv.errors import SkewconvError


class MissingExtraError(SkewconvError, ImportError):
    """A package that only some uses need is not installed."""


def missing_extra(package: str, extra: str, reason: str = "is missing") -> MissingExtraError:
    """The error that says which package is needed, and which extra brings it."""
    return MissingExtraError(f"{package} is needed here and {reason}: in a clone of skewconv, pip install '.[{extra}]'")


def optional(module: str, package: str, extra: str = "train") -> Any:
    """A module of an extra, imported; or an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra(package, extra) from error
    except ImportError as error:
        raise missing_extra(package, extra, f"cannot be imported ({error})") from error
