"""Small machines for whole modules: modes, copies in float64, inputs that fit, shapes met, parts replaced."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from skewconv.errors import UnboundedModuleError
from skewconv.nn.own_code import replaced_on
from skewconv.nn.wrappers import inner_model, is_rewired, is_wrapper


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode inside, and as it was afterwards.

    >>> from torch import nn
    >>> layer = nn.Dropout()
    >>> with evaluating(layer):
    ...     layer.training
    False
    >>> layer.training
    True
    """
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = False
        yield
    finally:
        for module, training in flags:
            module.training = training


def float64_copy(model: nn.Module, device: torch.device | str = "cpu") -> nn.Module:
    """A copy in float64, in eval mode, without gradients in its weights; of what stands inside known wrappers.

    A copy starts without caches, so nothing computed for older weights can reach what is proven of it.
    """
    inner = unchanged(inner_model(model))
    try:
        return for_inference(copy.deepcopy(inner).to(device).double())
    except RuntimeError as error:
        raise UnboundedModuleError(
            f"{type(inner).__name__} cannot be copied in float64 ({error}); give the module itself, not a scripted "
            "one, and remove what reparametrises its weights"
        ) from error


def unchanged(model: nn.Module) -> nn.Module:
    """The model itself, if nothing in it was replaced that a copy would not have.

    Raises:
        UnboundedModuleError: something was.
    """
    for name, module in model.named_modules():
        changed = replaced_on(module)
        if is_wrapper(module) and is_rewired(module):
            changed = "its forward was replaced on the instance"
        if changed is not None:
            raise UnboundedModuleError(f"'{name}' ({type(module).__name__}) computes something else: {changed}")
    return model


def for_inference(model: nn.Module) -> nn.Module:
    """The model itself, put into eval mode and without gradients in its weights.

    Raises:
        UnboundedModuleError: a part of it stays in training mode, and would compute something else than is proven.
    """
    model.eval().requires_grad_(False)
    for name, module in model.named_modules():
        if module.training:
            raise UnboundedModuleError(
                f"'{name}' ({type(module).__name__}) stays in training mode where eval() was called: let its train() "
                "pass the mode on"
            )
    return model


def first_tensor(model: nn.Module, otherwise: Tensor | None = None) -> Tensor:
    """A parameter or buffer whose dtype and device an input should have; else the tensor given, or an empty one."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point() or tensor.is_complex():
            return tensor
    return torch.empty(0) if otherwise is None else otherwise


def zeros_for(model: nn.Module, input_shape: tuple[int, ...]) -> Tensor:
    """A batch of one input that the model takes: (1, *input_shape), zeros."""
    like = first_tensor(model)
    return torch.zeros(1, *input_shape, dtype=like.dtype, device=like.device)


class MetShapes(NamedTuple):
    """The shapes of one input and one output of a layer in one call, without the batch axis."""

    given: tuple[int, ...]
    made: tuple[int, ...]


@contextmanager
def recording_shapes(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[MetShapes]]]:
    """What these layers meet in the calls that are made inside, by name, in the order in which their first calls begin.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> with recording_shapes(dict(model.named_children())) as met:
    ...     _ = model(torch.zeros(1, 2, 2))
    >>> met["1"]
    [MetShapes(given=(4,), made=(3,))]
    """
    met: dict[str, list[MetShapes]] = {}

    def begin(name: str) -> None:
        met.setdefault(name, [])

    def end(name: str, given: Tensor, made: object) -> None:
        met[name].append(MetShapes(tuple(given.shape[1:]), tuple(made.shape[1:]) if isinstance(made, Tensor) else ()))

    handles = []
    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(lambda *_, name=name: begin(name)))
        handles.append(layer.register_forward_hook(lambda _, given, made, name=name: end(name, given[0], made)))
    try:
        yield met
    finally:
        for handle in handles:
            handle.remove()


def replace_module(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    """The model with another module of this qualified name: changed in place, or the new one if the name is empty."""
    if not name:
        return new
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, new)
    return model
