"""How a module is written to a file and read back: its kind, its settings as JSON values, its tensors, its children."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from torch import Tensor, nn

from skewconv.errors import ArgumentError

Settings: TypeAlias = dict[str, Any]
Tensors: TypeAlias = Mapping[str, Tensor]
Children: TypeAlias = Mapping[str, nn.Module]
Class = TypeVar("Class", bound=type[nn.Module])
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class StoredForm:
    """A module's settings, and the module again from its settings, its own tensors and its children."""

    settings: Callable[[Any], Settings]
    build: Callable[[Settings, Tensors, Children], nn.Module]


_TYPES: dict[str, type[nn.Module]] = {}
_FORMS: dict[type[nn.Module], StoredForm] = {}


def storable(*attributes: str) -> Callable[[Class], Class]:
    """Decorate a class that can be stored under its name.

    >>> from torch import nn
    >>> @storable("slope")
    ... class Scaled(nn.Module):
    ...     def __init__(self, slope):
    ...         super().__init__()
    ...         self.slope = slope
    >>> form = stored_form(Scaled(3.0))
    >>> form.build(form.settings(Scaled(3.0)), {}, {}).slope
    3.0

    Args:
        attributes: which are also the arguments of its constructor. A class of which more is to be said has a method
            ``settings() -> dict`` and a class method ``from_settings(settings, tensors, children)`` instead.
    """

    def register(kind: Class) -> Class:
        settings = getattr(kind, "settings", None) or attributes_of(*attributes)
        enter_stored_form(kind, StoredForm(settings, getattr(kind, "from_settings", None) or constructed(kind)))
        return kind

    return register


def enter_stored_form(kind: type[nn.Module], form: StoredForm) -> None:
    """Make a type known by its name, which no other may have."""
    if kind.__name__ in _TYPES:
        raise ArgumentError(f"a class called {kind.__name__} can already be stored; give this one another name")
    _TYPES[kind.__name__], _FORMS[kind] = kind, form


def stored_form(module: nn.Module) -> StoredForm | None:
    """The form of exactly this type: a subclass may hold anything."""
    return _FORMS.get(type(module))


def stored_form_named(name: str) -> StoredForm | None:
    """The form of the type that is stored under this name."""
    return _FORMS[_TYPES[name]] if name in _TYPES else None


def storable_names() -> list[str]:
    """What can be stored, by name."""
    return sorted(_TYPES)


def attributes_of(*names: str) -> Callable[[Any], Settings]:
    """Settings that are attributes of the module."""
    return lambda module: {name: getattr(module, name) for name in names}


def constructed(kind: type[nn.Module]) -> Callable[[Settings, Tensors, Children], nn.Module]:
    """A module made by its constructor from its settings, and then given its tensors."""

    def build(settings: Settings, tensors: Tensors, children: Children) -> nn.Module:
        # JSON has lists only, and some of PyTorch's constructors take tuples only.
        arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
        return with_tensors(kind(**arguments), tensors)

    return build


def with_tensors(module: Module, tensors: Tensors) -> Module:
    """The module with these tensors in the place of its parameters and buffers of the same names."""
    for name, tensor in tensors.items():
        if isinstance(getattr(module, name), nn.Parameter):
            setattr(module, name, nn.Parameter(tensor, requires_grad=False))
        else:
            module.register_buffer(name, tensor)
    return module


def assembled(kind: type[Module], settings: Settings, children: Children) -> Module:
    """A module whose forward uses its children and settings alone, made without its constructor."""
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name, child in children.items():
        module.add_module(name, child)
    for name, value in settings.items():
        setattr(module, name, value)
    return module
