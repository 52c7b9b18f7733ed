"""Values under torch.func: what is proven depends on values, which the wrapped tensors of grad, jacrev, ... hide."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor inside all the wrappers."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def outside_transforms() -> AbstractContextManager[object]:
    """A context in which no function transform looks on."""
    if not torch._C._are_functorch_transforms_active():
        return nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()
