"""Whether what a class says of its modules is true of this one: hooks, replaced methods and subclasses compute more."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from skewconv.errors import UnboundedModuleError
from skewconv.nn.own_code import is_packaged, replaced_forward, replaced_on

# What a subclass may define without computing something else: how it is built, drawn, shown and stored.
_HARMLESS = frozenset(
    {
        *("__init__", "__new__", "__init_subclass__", "__class_getitem__", "__repr__", "extra_repr"),
        *("__annotate__", "__annotate_func__", "__dict__", "__weakref__", "reset_parameters"),
        *("settings", "from_settings", "with_weight", "__str__", "__hash__", "__eq__", "__dir__", "state_dict"),
        *("_save_to_state_dict", "_load_from_state_dict"),
    }
)


def reason_to_doubt(module: nn.Module) -> str | None:
    """Why a module may compute something else than its class does, or state another bound; None if nothing says so.

    >>> from torch import nn
    >>> layer = nn.ReLU()
    >>> layer.forward = lambda x: 10 * x
    >>> reason_to_doubt(layer)
    'its forward was replaced on the instance'
    """
    if module._forward_hooks or module._forward_pre_hooks:
        return "it has forward hooks, which may change what it computes"
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "there are forward hooks for all modules, which may change what they compute"
    changed = replaced_forward(type(module))
    if changed is not None:
        return f"{changed} was replaced, so that it may compute something else than it did"
    if (changed := replaced_on(module) or _misfit(module)) is not None:
        return changed
    replaced = [n for n in vars(module) if n == "lipschitz_upper_bound" or callable(getattr(type(module), n, None))]
    name = replaced[0] if replaced else None
    return None if name is None else f"its {name} was replaced on the instance"


def _misfit(module: nn.Module) -> str | None:
    """A tensor that is larger than the module says: what is repeated to fit it is counted once in a bound."""
    bias, entries = getattr(module, "bias", None), _bias_entries(module)
    if isinstance(bias, Tensor) and entries is not None and tuple(bias.shape) != (entries,):
        return f"its bias has the shape {tuple(bias.shape)}, where {entries} numbers belong"
    own = getattr(type(module), "misfit", None)
    # A method of that name in a class of somebody else may ask for something else.
    found: str | None = own(module) if own is not None and is_packaged(own) else None
    return found


def _bias_entries(module: nn.Module) -> int | None:
    """How many numbers the bias of a layer has; None where that is not known."""
    for kind, name in ((nn.Linear, "out_features"), (_ConvNd, "out_channels"), (_BatchNorm, "num_features")):
        if isinstance(module, kind):
            return int(getattr(module, name))
    entries = getattr(module, "bias_entries", None)
    return entries if isinstance(entries, int) else None


class OverriddenError(UnboundedModuleError):
    """A subclass inherits what was said of its base, and overrides what that rests on."""


def carried(module: nn.Module, name: str) -> Callable[..., Any] | None:
    """The method of a layer that says something of what it computes; None if its class has no such method.

    It may be inherited, but only by classes that override nothing else of the class that has it, but for what that one
    left abstract: what is said of a layer must not be said of another one.

    >>> from skewconv.nn import MaxMin
    >>> class Tenfold(MaxMin):
    ...     def forward(self, x):
    ...         return 10 * super().forward(x)
    >>> carried(Tenfold(), "float64_program")
    Traceback (most recent call last):
    skewconv.nn.protocol.trust.OverriddenError: Tenfold may compute something else than MaxMin, whose ...

    Raises:
        OverriddenError: a subclass overrides a method beside the one that is asked for.
    """
    for position, owner in enumerate(lineage := type(module).__mro__):
        if name in vars(owner):
            for at, heir in enumerate(lineage[:position]):
                for other in vars(heir):
                    if _decides(owner, heir, other) and not _fills_in(owner, other, lineage[at + 1 : position]):
                        raise OverriddenError(
                            f"{type(module).__name__} may compute something else than {owner.__name__}, whose {name} "
                            f"it inherits: {heir.__name__} overrides {other}; give it a {name} of its own"
                        )
            return getattr(module, name)
    return None


def _decides(owner: type, heir: type, name: str) -> bool:
    """Whether a name of the heir stands for code that the owner's methods may run."""
    given = vars(heir)[name]
    return name not in _HARMLESS and (callable(given) or hasattr(given, "__get__")) and hasattr(owner, name)


def _fills_in(owner: type, name: str, between: tuple[type, ...]) -> bool:
    """Whether the owner left the name open, and this is the first class that gives it a meaning."""
    left_open = getattr(getattr(owner, name), "__isabstractmethod__", False)
    return left_open and not any(name in vars(other) for other in between)
