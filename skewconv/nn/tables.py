"""Tables by type, each a ``functools.singledispatch`` function: what is known of a module of a class.

A subclass with a forward of its own computes something else, so that nothing is known of it; nor is of a module with
hooks, or with a forward on the instance.
"""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules import module as hooks

from skewconv.errors import ArgumentError, UnboundedModuleError


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

    def below(self, path: str) -> "UnsupportedLayerError":
        """The same, where the model is itself a part of this path."""
        return UnsupportedLayerError(self.module, self.reason, ".".join(part for part in (path, self.path) if part))


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


def rule_of(table: Any, module: nn.Module) -> Callable[..., Any] | None:
    """The function that a table has for a module; None if it has none."""
    owner = owner_of(module, lambda kind: kind in table.registry and kind not in (object, nn.Module))
    return None if owner is None else table.registry[owner]


def register(table: Any, kinds: tuple[type[nn.Module], ...]) -> Callable[[Any], Any]:
    """Decorate the table's rule for modules of these types; none is replaced."""

    def enter(rule: Any) -> Any:
        for kind in kinds:
            if kind in table.registry:
                raise ArgumentError(f"a rule is already registered for {kind.__name__}")
            table.register(kind)(rule)
        return rule

    return enter
