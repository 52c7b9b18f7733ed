"""The proven Lipschitz bound of a module, from its own method or by the rule of its type; or a refusal by name."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from skewconv.errors import DtypeError, NotFiniteError, ShapeError, UnboundedModuleError
from skewconv.nn.module_tools import evaluating, zeros_for
from skewconv.nn.protocol.rules import Shape, rules_of
from skewconv.nn.protocol.trust import OverriddenError, carried, reason_to_doubt
from skewconv.nn.wrappers import held_model, inner_model, wrapper_hint


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
        """The same with the path from this model."""
        paths = (name for name, module in model.named_modules() if module is self.module)
        return NoBoundError(self.module, self.reason, next(paths, self.path))


def lipschitz_upper_bound(model: nn.Module, input_shape: Iterable[int]) -> float:
    """L with ||f(x) - f(y)|| <= L ||x - y|| for all x, y: proven, for the map f that the model computes in eval mode.

    >>> from torch import nn
    >>> lipschitz_upper_bound(nn.Sequential(nn.Flatten(), nn.ReLU()), (3, 8, 8))
    1.0

    Args:
        model: a module with a method ``lipschitz_upper_bound``, or of a registered type, or one of your own whose
            forward joins such modules by sums, views and the like (:mod:`skewconv.nn.graph`). Its weights, buffers and
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
    held = held_model(model)
    if held is not None:
        return _bound(held[1], shape)
    doubt = reason_to_doubt(model)
    if doubt is not None:
        raise NoBoundError(model, doubt)
    try:
        method = carried(model, "lipschitz_upper_bound")
    except OverriddenError as error:
        raise NoBoundError(model, str(error)) from None
    if method is not None:
        return float(method(shape))
    rule = rules_of(model).lipschitz_upper_bound
    if rule is None:
        return _bound_of_graph(model, shape)
    return float(rule(model, shape))


def _bound_of_graph(model: nn.Module, shape: Shape) -> float:
    """The bound of a module of which nothing is said, from what its forward does."""
    # The graph's operations are bounded by what stands here.
    from skewconv.nn.graph import graph_bound, is_somebodys_own

    if not is_somebodys_own(model):
        reason = "its type is not registered (a subclass of a registered type does not count)"
        raise NoBoundError(model, reason + wrapper_hint(model))
    try:
        return graph_bound(model, shape)
    except ShapeError:
        raise
    except UnboundedModuleError as error:
        reason = f"its type is not registered, and its graph gives none: {error}"
        raise NoBoundError(model, reason + wrapper_hint(model)) from error


def output_shape(module: nn.Module, input_shape: Shape) -> Shape:
    """The shape of one output in eval mode, by running zeros; flags, buffers and random numbers stay as they were."""
    module = inner_model(module)
    x = zeros_for(module, input_shape)
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
