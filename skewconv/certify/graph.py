"""A Lipschitz bound for plain modules: their forward is traced, and each operation of the graph is bounded.

L(a + b) <= L(a) + L(b), L([a, b]) <= sqrt(L(a)^2 + L(b)^2), and modules multiply.
"""

import math
import operator
from typing import Any, NamedTuple

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.errors import UnboundedModuleError
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.module_tools import float64_copy
from skewconv.rigor import factor_up

_STEP_UP = factor_up(8)
_MAPS_BY_ONE: set[Any] = {
    *(torch.relu, F.relu, torch.relu_, F.relu6, torch.tanh, F.tanh, torch.flatten, torch.reshape, torch.permute),
    *(torch.transpose, F.pixel_unshuffle, F.pixel_shuffle, torch.chunk, torch.narrow, operator.getitem),
    *("relu", "relu_", "tanh", "flatten", "view", "reshape", "permute", "transpose", "contiguous", "chunk", "narrow"),
    *("unflatten", "squeeze", "unsqueeze", "clone", "movedim"),
}
_SUMS: set[Any] = {operator.add, operator.sub, torch.add, torch.sub, "add", "sub"}
_QUOTIENTS: set[Any] = {operator.truediv, torch.div, "div"}
_SCALINGS: set[Any] = {operator.mul, torch.mul, "mul", *_QUOTIENTS}
_SHAPES: set[Any] = {"size", "dim", "numel"}
_POOLS: dict[Any, type[nn.Module]] = {
    F.avg_pool2d: nn.AvgPool2d,
    F.max_pool2d: nn.MaxPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}


class _Tracer(torch.fx.Tracer):
    """Stops at modules that state a bound, and at PyTorch's own but for containers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return hasattr(m, "lipschitz_upper_bound") or super().is_leaf_module(m, module_qualified_name)


class _Pair(NamedTuple):
    """A value, of which only the shape matters, and the Lipschitz bound of it in the input."""

    value: Any
    bound: float


class _Bounds(torch.fx.Interpreter):
    """Runs a graph on pairs."""

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op in ("placeholder", "get_attr"):
            return _Pair(super().run_node(n), 1.0 if n.op == "placeholder" else 0.0)
        given = torch.fx.node.map_arg((n.args, n.kwargs), lambda node: self.env[node])
        moving = [pair for pair in _pairs(given) if pair.bound > 0]
        args, kwargs = _values(given)
        if n.op == "output":
            return _Pair(args[0], max((pair.bound for pair in moving), default=0.0))
        value = getattr(self, n.op)(n.target, args, kwargs)
        if not moving or isinstance(value, torch.Size) or n.target in _SHAPES:
            return _Pair(value, 0.0)
        if not isinstance(value, (Tensor, tuple, list)):
            raise _refused(n, "it makes a number of the input")
        return _Pair(value, self._bound(n, moving, args, kwargs, value))

    def _bound(self, n: torch.fx.Node, moving: list[_Pair], args: Any, kwargs: Any, value: Any) -> float:
        first, target = moving[0].bound, n.target
        if not all(t.dtype == torch.float64 for t in _tensors(value)):
            raise _refused(n, "it changes the precision, or the bits are taken for those of another type")
        if n.op == "call_module":
            if len(moving) > 1 or len(args) != 1 or kwargs:
                raise _refused(n, "a bound is known for modules of one input only")
            return self._module_bound(str(target), tuple(args[0].shape[1:])) * first * _STEP_UP
        if target in _SUMS and not kwargs and len(args) == 2 and isinstance(value, Tensor):
            # What is broadcast is repeated, and repeating a value k times stretches by sqrt(k).
            return math.fsum(p.bound * math.sqrt(value.numel() / p.value.numel()) * _STEP_UP for p in moving) * _STEP_UP
        if target in (torch.cat, torch.concat):
            return math.sqrt(math.fsum(p.bound**2 for p in moving)) * _STEP_UP
        if len(moving) > 1:
            raise _refused(n, "it joins several values that depend on the input")
        if target in _SCALINGS and not kwargs and len(args) == 2:
            number = args[0] if target not in _QUOTIENTS and isinstance(args[1], Tensor) else args[1]
            if isinstance(number, (int, float)):
                return abs(1 / number if target in _QUOTIENTS else number) * first * _STEP_UP
        if target in (torch.mean, "mean"):
            # Equal weights 1 / n on disjoint sets of n entries.
            return math.sqrt(value.numel() / args[0].numel()) * first * _STEP_UP
        if target in _POOLS:
            options = {k: v for k, v in kwargs.items() if k not in ("input", "inplace")}
            return (
                lipschitz_upper_bound(_POOLS[target](*args[1:], **options), tuple(args[0].shape[1:])) * first * _STEP_UP
            )
        if target is operator.getitem and not _picks_once(args):
            raise _refused(n, "an index may repeat entries")
        if target in _MAPS_BY_ONE or (target is F.dropout and kwargs.get("training") is False):
            return first
        raise _refused(n, "the operation is not known")

    def _module_bound(self, name: str, shape: tuple[int, ...]) -> float:
        try:
            return lipschitz_upper_bound(self.fetch_attr(name), shape)
        except UnboundedModuleError as error:
            raise UnboundedModuleError(str(error).replace("the model itself", f"'{name}'")) from None


def graph_upper_bound(model: nn.Module, input_shape: tuple[int, ...]) -> float:
    """A proven Lipschitz constant of a module in eval mode from the graph of its forward.

    >>> class Block(nn.Module):
    ...     def forward(self, x):
    ...         return x + torch.relu(x)
    >>> 2.0 <= graph_upper_bound(Block(), (3,)) < 2.0 + 1e-12
    True

    Raises:
        UnboundedModuleError: an operation or module has no known bound, has hooks, or the forward cannot be traced.
    """
    plain = float64_copy(model)
    for name, module in plain.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise UnboundedModuleError(f"'{name}' has forward hooks, which may change what it computes; remove them")
    try:
        graph = _Tracer().trace(plain)
    except Exception as error:  # what tracing raises is not documented
        raise UnboundedModuleError(
            f"no Lipschitz bound is known for {type(model).__name__}: its forward cannot be traced ({error}); give the "
            "class a method lipschitz_upper_bound(input_shape) -> float"
        ) from error
    traced = torch.fx.GraphModule(plain, graph)
    with torch.no_grad(), torch.random.fork_rng([]):
        # The graph knows nothing of values that share memory: an operation in place may have changed another one.
        for scale in (0.1, 1.0, 10.0):
            x = scale * torch.randn(2, *input_shape, dtype=torch.float64)
            if not torch.equal(plain(x.clone()), traced(x.clone())):
                raise UnboundedModuleError(
                    f"no Lipschitz bound is known for {type(model).__name__}: the graph of its forward computes "
                    "something else, as where a value is changed in place and used again; write it without that"
                )
        runner = _Bounds(traced)
        return float(runner.run(torch.zeros(1, *input_shape, dtype=torch.float64)).bound)


def _picks_once(args: Any) -> bool:
    """Whether value[index] takes every entry at most once: one of several values, or slices of one."""
    value, index = args
    parts = index if isinstance(index, tuple) else (index,)
    return not isinstance(value, Tensor) or all(
        part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts
    )


def _refused(n: torch.fx.Node, reason: str) -> UnboundedModuleError:
    return UnboundedModuleError(
        f"no Lipschitz bound is known for the operation '{n.name}' ({getattr(n.target, '__name__', n.target)}) in the "
        f"forward of the model: {reason}; replace it by a module with a bound"
    )


def _pairs(given: Any) -> list[_Pair]:
    """Every pair in nested arguments."""
    if isinstance(given, _Pair):
        return [given]
    items = given.values() if isinstance(given, dict) else given if isinstance(given, (tuple, list)) else ()
    return [pair for item in items for pair in _pairs(item)]


def _tensors(value: Any) -> list[Tensor]:
    """Every tensor in nested results."""
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    return [value] if isinstance(value, Tensor) else []


def _values(given: Any) -> Any:
    """The same arguments with values in place of pairs."""
    if isinstance(given, _Pair):
        return given.value
    if isinstance(given, dict):
        return {k: _values(v) for k, v in given.items()}
    return type(given)([_values(v) for v in given]) if isinstance(given, (tuple, list)) else given
