"""Tools for whole modules: wrappers, modes, copies in float64, shapes met, constructor arguments, tables by type.

A table is a ``functools.singledispatch`` function: what is known of a module of a class. A subclass with a forward of
its own computes something else, so that nothing is known of it; nor is of a module with hooks, or with a forward on the
instance.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.nn.utils import parametrize

from skewconv.errors import ArgumentError, UnboundedModuleError

# Modules that only hold another one and run it, by the full names of their classes: the attribute that holds it.
_HELD_AS = {
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.optim.swa_utils.AveragedModel": "module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "lightning_fabric.wrappers._FabricModule": "_original_module",
    "lightning.fabric.wrappers._FabricModule": "_original_module",
}


def unwrapped(module: nn.Module) -> nn.Module:
    """The model inside all known wrappers, unless one has hooks; the module itself where there is none."""
    while (name := _HELD_AS.get(f"{type(module).__module__}.{type(module).__qualname__}")) is not None:
        if module._forward_hooks or module._forward_pre_hooks:
            break
        module = getattr(module, name)
    return module


def with_plain_weights(model: nn.Module) -> nn.Module:
    """The model with the weights that its parametrizations make now; a copy, if it has any."""
    if not any(parametrize.is_parametrized(module) for module in model.modules()):
        return model
    plain = copy.deepcopy(model)
    for module in [each for each in plain.modules() if parametrize.is_parametrized(each)]:
        weights = {name: getattr(module, name).detach() for name in module.parametrizations}  # type: ignore[union-attr]
        # PyTorch's own removal edits the class, which the model that was copied has, too.
        del module.parametrizations
        module.__class__ = parametrize.type_before_parametrizations(module)
        for name, weight in weights.items():
            module.register_parameter(name, nn.Parameter(weight, requires_grad=False))
    return plain


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode inside, and as it was afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = False
        yield
    finally:
        for module, training in flags:
            module.training = training


def float64_copy(model: nn.Module, device: torch.device | str = "cpu") -> nn.Module:
    """A copy in float64 and eval mode, without caches or gradients, of what stands inside known wrappers."""
    inner = unwrapped(model)
    try:
        return for_inference(copy.deepcopy(inner).to(device).double())
    except RuntimeError as error:
        raise UnboundedModuleError(
            f"{type(inner).__name__} cannot be copied in float64 ({error}); give the module itself, not a scripted "
            "one, and remove what reparametrises its weights"
        ) from error


def for_inference(model: nn.Module) -> nn.Module:
    """The model itself, in eval mode and without gradients in its weights; refused if a part stays in training."""
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
    """What these layers meet in the calls made inside, by name, in the order in which their first calls begin."""
    met: dict[str, list[MetShapes]] = {}

    def begin(name: str) -> None:
        met.setdefault(name, [])

    def end(name: str, given: Any, made: Any) -> None:
        if given and isinstance(given[0], Tensor):
            shape = tuple(made.shape[1:]) if isinstance(made, Tensor) else ()
            met[name].append(MetShapes(tuple(given[0].shape[1:]), shape))

    handles = []
    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(lambda *_, name=name: begin(name)))
        handles.append(layer.register_forward_hook(lambda _, given, made, name=name: end(name, given, made)))
    try:
        yield met
    finally:
        for handle in handles:
            handle.remove()


def replace_module(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    """The model with another module of this name: changed in place, or the new one if the name is empty."""
    if not name:
        return new
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, new)
    return model


def arguments(module: nn.Module) -> dict[str, Any]:
    """The constructor's arguments, which a module keeps under their names; True for tensors of PyTorch."""
    found: dict[str, Any] = {}
    for name in constructor_names(type(module)):
        value = getattr(module, name, None) if name not in ("device", "dtype", "inplace", "momentum") else None
        if isinstance(value, nn.Parameter) or (name in module._parameters and value is None):
            found[name] = value is not None
        elif name not in module._buffers and hasattr(module, name) and name not in ("inplace", "momentum"):
            found[name] = value
    return found


def constructor_names(kind: type) -> list[str]:
    """The names of the arguments of a class's constructor, those of its bases included where it passes them on."""
    names: list[str] = []
    for base in kind.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters
            names += [n for n, p in list(parameters.items())[1:] if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
            if not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
                break
    return list(dict.fromkeys(names))


class UnsupportedLayerError(UnboundedModuleError):
    """A module of which a room knows nothing, named by its path from the model."""

    def __init__(self, module: nn.Module, reason: str, path: str = "") -> None:
        self.module, self.reason, self.path = module, reason, path
        where, kind = f"'{path}'" if path else "the model itself", type(module)
        super().__init__(
            f"{where} ({kind.__module__}.{kind.__qualname__}) is not supported here: {reason}; give its class a method "
            "lower(input_shape, tol=None) that makes the same map of modules that are, register what is known of it "
            "(skewconv.nn.register_bound, skewconv.certify.register_rounding), or replace the module"
        )


@contextmanager
def named(path: str) -> Iterator[None]:
    """A refusal inside names the module from here, where this is its path."""
    try:
        yield
    except UnsupportedLayerError as error:
        whole = ".".join(part for part in (path, error.path) if part)
        raise UnsupportedLayerError(error.module, error.reason, whole) from None


def tampering(module: nn.Module) -> str | None:
    """Why a module may compute something else than its class does; None if nothing says so."""
    if module._forward_hooks or module._forward_pre_hooks:
        return "it has forward hooks, which may change what it computes"
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "there are forward hooks for all modules, which may change what they compute"
    return "its forward was replaced on the instance" if "forward" in vars(module) else None


def owner_of(module: nn.Module, owns: Callable[[type], bool]) -> type | None:
    """The first class of a module that this is true of, or None; refused if another map may be computed."""
    owner = next((kind for kind in type(module).__mro__ if owns(kind)), None)
    if owner is None:
        return None
    if (reason := tampering(module)) is not None:
        raise UnsupportedLayerError(module, reason)
    if type(module).forward is not owner.forward:  # type: ignore[attr-defined]
        reason = f"{type(module).__name__} may compute something else than {owner.__name__}: it has its own forward"
        raise UnsupportedLayerError(module, reason)
    return owner


def ask(table: Any, module: nn.Module, *given: Any, path: str = "") -> Any:
    """What a table says of a module, by the rule of its type or by the one for all others."""
    with named(path):
        owner = owner_of(module, lambda kind: kind in table.registry and kind not in (object, nn.Module))
        return (table if owner is None else table.registry[owner])(module, *given)


def register(table: Any, kinds: tuple[type[nn.Module], ...]) -> Callable[[Any], Any]:
    """Decorate the table's rule for modules of these types; none is replaced."""

    def enter(rule: Any) -> Any:
        for kind in kinds:
            if kind in table.registry:
                raise ArgumentError(f"a rule is already registered for {kind.__name__}")
            table.register(kind)(rule)
        return rule

    return enter
