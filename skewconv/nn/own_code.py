"""Whether a class of PyTorch's or of ours still runs the code that its package gave it."""

from types import FunctionType
from typing import Any

_PACKAGES = ("torch", "skewconv")
# What stands between a call and the sums that it makes.
_RUN = ("__call__", "_call_impl", "_wrapped_call_impl", "forward", "_conv_forward")


def replaced_forward(kind: type) -> str | None:
    """The name of a forward that somebody put in the place of one of PyTorch's or of ours; None if there is none.

    A function is told by the module whose globals it sees, which it cannot change, whatever it calls itself. What a
    forward calls in turn is not looked into.

    >>> from torch import nn
    >>> replaced_forward(nn.ReLU) is None
    True
    """
    for owner in kind.__mro__:
        if _is_ours(owner.__module__):
            for name in _RUN:
                if not is_packaged(vars(owner).get(name)):
                    return f"{owner.__qualname__}.{name}"
    return None


def is_packaged(method: Any) -> bool:
    """Whether something is no function, or one that was written in PyTorch or here."""
    function = getattr(method, "__func__", method)
    return not isinstance(function, FunctionType) or _is_ours(str(function.__globals__.get("__name__")))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _PACKAGES
