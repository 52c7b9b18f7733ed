"""What of PyTorch's surroundings changes how a function should run: autocast, compilers, function transforms."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from skewconv.errors import ArgumentError, ExportError

# What an operator may find switched off.
_ORDINARY_KEYS = (
    *("Conjugate", "Negative", "ZeroTensor", "ADInplaceOrView"),
    *("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"),
)


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for this device; devices that do not know it, such as meta, have it off."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Products in the dtype of their operands: a recurrence is cast once, at its entry."""
    return torch.autocast(device.type, enabled=False) if autocasting(device) else nullcontext()


def values_at_hand(device: torch.device) -> bool:
    """Whether the host can look at a value without waiting for it: an accelerator is still computing."""
    return device.type == "cpu"


def tracing() -> bool:
    """Whether a compiler, a tracer or a function transform looks on, for which a recurrence is written out."""
    return torch.compiler.is_compiling() or jit_tracing() or torch._C._are_functorch_transforms_active()


def compiling() -> bool:
    """Whether torch.compile alone looks on: no exporter, whose program runs where this library is not, no transform."""
    others = exporting() or torch._C._are_functorch_transforms_active()
    return torch.compiler.is_compiling() and not others


def exporting() -> bool:
    """Whether torch.export looks on. Torch 2.6 cannot say so; there a program asks for its layer when it is run."""
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


def jit_tracing() -> bool:
    """Whether torch.jit.trace looks on."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def refuse_export(name: str) -> None:
    """Refuse to be exported: what a layer proves of its parameters cannot be written into a program."""
    if exporting() or torch.onnx.is_in_onnx_export():
        raise ExportError(
            f"{name} proves its operator from the values of its parameters, which an exported program cannot do; "
            "freeze the model and export that: frozen = skewconv.freeze(model, input_shape), then "
            "torch.export.export(frozen, (images,)) or torch.onnx.export(frozen, (images,), ...)"
        )


@contextmanager
def outside_traces() -> Iterator[None]:
    """A context in which torch.jit.trace does not look on: what is computed inside is a constant of the trace."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def ordinary_dispatch() -> AbstractContextManager[Any]:
    """Code inside an operator of PyTorch's runs as it would outside.

    Such an operator is called below the tape of autograd, and where something watches the operators (the first run of a
    compiled program), also below the step in which a conjugate that was only noted down is carried out: what reads its
    memory then takes it for the number itself.
    """
    exclude = torch._C._dispatch_tls_local_exclude_set()
    for name in _ORDINARY_KEYS:
        exclude = exclude.remove(getattr(torch._C.DispatchKey, name))
    include = torch._C._dispatch_tls_local_include_set().add(torch._C.DispatchKey.ADInplaceOrView)
    return torch._C._ForceDispatchKeyGuard(include, exclude)


def refuse_gradients_of_stacks(name: str, tensors: Iterable[Tensor]) -> None:
    """Refuse torch.func's derivatives in parameters that it has stacked too."""
    for tensor in tensors:
        layers = list(_wrappers(tensor))
        if any(map(torch._C._functorch.is_batchedtensor, layers)) and any(
            map(torch._C._functorch.is_gradtrackingtensor, layers)
        ):
            raise ArgumentError(
                f"torch.func cannot differentiate {name} in eval mode in stacked parameters, as its operator is proven "
                "for each of the models by itself; train the stack in training mode, or take gradients model by model"
            )


def batched(tensor: Tensor) -> bool:
    """Whether torch.func.vmap has stacked several tensors into this one, at any level."""
    return not torch.compiler.is_compiling() and any(map(torch._C._functorch.is_batchedtensor, _wrappers(tensor)))


def _wrappers(tensor: Tensor) -> Iterator[Tensor]:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        yield tensor
        tensor = torch._C._functorch.get_unwrapped(tensor)


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
