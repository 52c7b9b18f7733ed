"""What of PyTorch's surroundings changes how a function should run: autocast, compilers, function transforms."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from skewconv.errors import ExportError

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def autocasting(device: torch.device) -> bool:
    """True if autocast is on for this device; devices that do not know it, such as meta, have it off."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Products in the dtype of their operands: a recurrence is cast once, at its entry."""
    return torch.autocast(device.type, enabled=False) if autocasting(device) else nullcontext()


def elementwise(x: Tensor) -> Tensor:
    """float32 in place of half precision on processors, which do sums and choices of few channels in it one by one."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) and x.device.type == "cpu" else x


def values_at_hand(device: torch.device) -> bool:
    """True where the host can read a value without waiting: an accelerator is still computing."""
    return device.type == "cpu"


def tracing() -> bool:
    """True under torch.compile, torch.export, torch.jit.trace and torch.func, for which a recurrence is written out."""
    return torch.compiler.is_compiling() or jit_tracing() or torch._C._are_functorch_transforms_active()


def uncompiled(method: MethodT) -> MethodT:
    """A layer's method that torch.compile leaves to eager mode, which is as fast, and torch.export refuses."""
    # Not torch.compiler.disable: the compiler takes seconds to import.
    eager = _disable_dynamo(method)

    @functools.wraps(method)
    def call(self: object, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        refuse_export(type(self).__name__)
        return eager(self, *args, **kwargs)

    return cast(MethodT, call)


def in_format_of(x: Tensor, y: Tensor, layer: object = None) -> Tensor:
    """The output y in the memory format of the input x, so that ``layer(x).view(n, -1)`` works as for nn.Conv2d.

    Engines compute in the format that is fastest for them. y keeps that format in traces, and inside a network
    (:func:`between_layers`), where the next layer takes any.
    """
    if tracing() or getattr(layer, "_between_layers", False):
        return y
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    keeps_last = y.dim() == x.dim() and not x.is_contiguous() and x.is_contiguous(memory_format=last)
    return y.contiguous(memory_format=last if keeps_last else torch.contiguous_format)


def between_layers(network: nn.Module) -> None:
    """Let the layers of a network leave their outputs in any memory format."""
    for module in network.modules():
        vars(module)["_between_layers"] = True


def jit_tracing() -> bool:
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def refuse_export(name: str) -> None:
    # Torch 2.6 cannot say whether torch.export runs.
    exporting = hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()
    if exporting or torch.onnx.is_in_onnx_export() or jit_tracing():
        raise ExportError(
            f"{name} proves its operator from the values of its parameters, which an exported program cannot do; "
            "freeze the model and export that: frozen = skewconv.freeze(model, input_shape), then "
            "torch.export.export(frozen, (images,)) or torch.onnx.export(frozen, (images,), ...)"
        )


def outside_transforms() -> AbstractContextManager[object]:
    if not torch._C._are_functorch_transforms_active():
        return nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()
