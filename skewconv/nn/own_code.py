"""Whether modules still run the code that PyTorch or this package gave them, on tensors of PyTorch's own kinds."""

import sys
from types import FunctionType
from typing import Any

from torch import Tensor, nn

_PACKAGES = ("torch", "skewconv")
# What stands between a call and the sums that it makes.
_RUN = ("__call__", "_call_impl", "_wrapped_call_impl", "forward", "_conv_forward")


def replaced_forward(kind: type) -> str | None:
    """The name of a forward that somebody put in the place of one of PyTorch's or of ours; None if there is none.

    A function is told by the module whose globals it sees, whatever it calls itself. What a forward calls in turn is
    not looked into.

    >>> from torch import nn
    >>> replaced_forward(nn.ReLU) is None
    True
    """
    for owner in kind.__mro__:
        if _is_ours(owner.__module__):
            for name in _RUN:
                if not is_packaged(vars(owner).get(name)) or _is_of_another(vars(owner).get(name), owner):
                    return f"{owner.__qualname__}.{name}"
    return None


def _is_of_another(method: Any, owner: type) -> bool:
    """Whether a method was written for another class; Python 3.10 does not tell."""
    last = _wrapped(method)[-1] if method is not None else None
    code = getattr(getattr(last, "__func__", last), "__code__", None)
    home, dot, _ = getattr(code, "co_qualname", "").rpartition(".")
    return bool(dot) and "<locals>" not in home and home != owner.__qualname__


def is_packaged(method: Any) -> bool:
    """Whether this is None, or a function that was written in PyTorch or here, and so is whatever that wraps."""
    return all(map(_is_written_here, _wrapped(method)))


def runs(method: Any, module: nn.Module) -> bool:
    """Whether a function is PyTorch's or ours around this module, or around its own call: as compilers make them."""
    *around, last = _wrapped(method)
    own_call = getattr(last, "__self__", None) is module and _is_written_here(last)
    return all(map(_is_written_here, around)) and (last is module or own_call)


def replaced_on(module: nn.Module) -> str | None:
    """What of this one module computes something else than its class does, in words; None if nothing is known to."""
    call = vars(module).get("_compiled_call_impl")
    # Module.compile() puts a wrapper of the module's own call there.
    if call is not None and not runs(call, module):
        return "its compiled call was replaced"
    held = {**vars(module), **module._parameters, **module._buffers}
    for name, tensor in held.items():
        if isinstance(tensor, Tensor) and type(tensor) not in (Tensor, nn.Parameter):
            return f"its {name} is a {type(tensor).__name__}, which may decide by itself what functions make of it"
    return None


def _wrapped(method: Any) -> list[Any]:
    """The function, the one that it wraps, the one that this wraps, ..."""
    found: list[Any] = []
    while method is not None and len(found) < 100:
        found.append(method)
        method = getattr(getattr(method, "__func__", method), "__wrapped__", None)
    return found


def _is_written_here(method: Any) -> bool:
    function = getattr(method, "__func__", method)
    if not isinstance(function, FunctionType):
        return False
    name = str(function.__globals__.get("__name__"))
    return _is_ours(name) and name in sys.modules and vars(sys.modules[name]) is function.__globals__


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _PACKAGES
