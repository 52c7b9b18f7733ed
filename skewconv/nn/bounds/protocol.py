"""The protocol, its entry and its registry.

A module takes part by a method ``lipschitz_upper_bound(input_shape) -> float`` (input_shape without the batch axis)
that bounds its map in eval mode. Plain PyTorch modules cannot carry one; for those there are rules, found by exact
type: a subclass may compute anything.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from skewconv.errors import DtypeError, NotFiniteError, ShapeError, UnboundedModuleError
from skewconv.nn.bounds.registry import registering
from skewconv.nn.modes import evaluating

Shape: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[Any, Shape], float]
RuleT = TypeVar("RuleT", bound=Rule)

_RULES: dict[type[nn.Module], Rule] = {}


class NoBoundError(UnboundedModuleError):
    """Remembers the module, so that every enclosing model can lengthen the path to it."""

    def __init__(self, module: nn.Module, reason: str, path: str = "") -> None:
        self.module, self.reason, self.path = module, reason, path
        where = f"'{path}'" if path else "the model itself"
        kind = type(module)
        super().__init__(
            f"no Lipschitz bound is known for {where} ({kind.__module__}.{kind.__qualname__}): {reason}; give the "
            "class a method lipschitz_upper_bound(input_shape) -> float, register a rule with "
            "skewconv.nn.register_bound, or replace the module"
        )

    def seen_from(self, model: nn.Module) -> "NoBoundError":
        paths = (name for name, module in model.named_modules() if module is self.module)
        return NoBoundError(self.module, self.reason, next(paths, self.path))


def lipschitz_upper_bound(model: nn.Module, input_shape: Iterable[int]) -> float:
    """L with ||f(x) - f(y)|| <= L ||x - y|| for all x, y: proved, for the map f that the model computes in eval mode.

    >>> from torch import nn
    >>> lipschitz_upper_bound(nn.Sequential(nn.Flatten(), nn.ReLU()), (3, 8, 8))
    1.0

    Args:
        model: a module with a method ``lipschitz_upper_bound``, or of a registered type. Its weights, buffers and
            training flags are left as they are.
        input_shape: the shape of one input, without the batch axis.

    The bound is of the map in exact arithmetic with the weights as stored; the rounding of an evaluation is not in it.
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    shape = tuple(input_shape)
    if any(type(n) is not int or n < 1 for n in shape):
        raise ShapeError(f"input_shape must hold integers >= 1, without the batch axis, got {shape}")
    try:
        bound = _bound(model, shape)
    except NoBoundError as error:
        raise error.seen_from(model) from None
    if not (math.isfinite(bound) and bound >= 0):
        raise NotFiniteError(f"the Lipschitz bound of {type(model).__name__} is {bound}; are its weights finite?")
    return bound


def _bound(model: nn.Module, shape: Shape) -> float:
    doubt = reason_to_doubt(model)
    if doubt is not None:
        raise NoBoundError(model, doubt)
    method = getattr(model, "lipschitz_upper_bound", None)
    if callable(method):
        return float(method(shape))
    rule = _RULES.get(type(model))
    if rule is None:
        raise NoBoundError(model, "its type is not registered (a subclass of a registered type does not count)")
    return float(rule(model, shape))


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
    replaced = [n for n in vars(module) if n == "lipschitz_upper_bound" or callable(getattr(type(module), n, None))]
    name = replaced[0] if replaced else None
    return None if name is None else f"its {name} was replaced on the instance"


def register_bound(*kinds: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Decorate a rule (module, input_shape) -> float that bounds modules of exactly these types.

    >>> from torch import nn
    >>> class Half(nn.Module):
    ...     def forward(self, x):
    ...         return x / 2
    >>> @register_bound(Half)
    ... def half(module, input_shape):
    ...     return 0.5
    >>> lipschitz_upper_bound(Half(), (3,))
    0.5
    """
    return registering(_RULES, kinds)


def output_shape(module: nn.Module, input_shape: Shape) -> Shape:
    """The shape of one output in eval mode, by running zeros; flags, buffers and random numbers stay as they were."""
    tensors = [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point() or t.is_complex()]
    like = tensors[0] if tensors else torch.empty(0)
    x = torch.zeros(1, *input_shape, dtype=like.dtype, device=like.device)
    generators = [] if x.device.type == "cpu" else [x.device]
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    forked = torch.random.fork_rng(generators, device_type=x.device.type if generators else "cuda")
    try:
        with evaluating(module), torch.no_grad(), forked:
            y = torch.func.functional_call(module, buffers, (x,))
    except (RuntimeError, ValueError, IndexError) as error:
        raise ShapeError(f"{type(module).__name__} does not take an input of shape {input_shape}: {error}") from error
    if not isinstance(y, Tensor):
        raise NoBoundError(module, f"it returns a {type(y).__name__} instead of one tensor")
    return tuple(y.shape[1:])
