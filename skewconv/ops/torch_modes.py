"""What of PyTorch's surroundings changes how a function should run: autocast, compilers, function transforms."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for this device; devices that do not know it, such as meta, have it off."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Products in the dtype of their operands: a recurrence is cast once, at its entry."""
    return torch.autocast(device.type, enabled=False) if autocasting(device) else nullcontext()


def tracing() -> bool:
    """Whether a compiler or a function transform looks on, for which a recurrence is written out."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor inside all the wrappers of torch.func, which hide the values that a proof depends on."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def outside_transforms() -> AbstractContextManager[object]:
    """A context in which no function transform looks on."""
    if not torch._C._are_functorch_transforms_active():
        return nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()
