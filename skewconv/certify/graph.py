"""A Lipschitz bound for plain modules: their forward is traced, and each operation of the graph is bounded.

L(add(a, b)) <= L(a) + L(b), L(cat(a, b)) <= sqrt(L(a)^2 + L(b)^2), and modules multiply.
"""

import copy
import math
import operator
from typing import Any, NamedTuple

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.errors import UnboundedModuleError
from skewconv.nn import lipschitz_upper_bound

_UP = 1 + 2.0**-50
_MAPS_BY_ONE: set[Any] = {
    *(torch.relu, F.relu, torch.relu_, F.relu6, torch.tanh, F.tanh, torch.flatten, torch.reshape, torch.permute),
    *(torch.transpose, F.pixel_unshuffle, F.pixel_shuffle, torch.chunk, torch.narrow, operator.getitem),
    *("relu", "relu_", "tanh", "flatten", "view", "reshape", "permute", "transpose", "contiguous", "chunk", "narrow"),
    *("unflatten", "squeeze", "unsqueeze", "clone", "movedim"),
}
_SUMS: set[Any] = {operator.add, operator.iadd, operator.sub, operator.isub, torch.add, torch.sub, "add", "sub"}
_QUOTIENTS: set[Any] = {operator.truediv, torch.div, "div"}
_SCALINGS: set[Any] = {operator.mul, torch.mul, "mul", *_QUOTIENTS}
_VIEWS = (nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
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
        if not moving or isinstance(value, torch.Size) or not isinstance(value, (Tensor, tuple, list)):
            return _Pair(value, 0.0)
        return _Pair(value, self._bound(n, [pair.bound for pair in moving], args, kwargs, value))

    def _bound(self, n: torch.fx.Node, moving: list[float], args: Any, kwargs: Any, value: Any) -> float:
        first, target = moving[0], n.target
        if n.op == "call_module":
            return self._module_bound(str(target), tuple(args[0].shape[1:])) * first * _UP
        if target in _SUMS and kwargs.get("alpha", 1) == 1 and len(args) == 2:
            if target in (operator.iadd, operator.isub) and not self._owned(n.args[0]):
                raise _refused(n, "it changes in place what is used elsewhere")
            return math.fsum(moving) * _UP
        if target in (torch.cat, torch.concat):
            return math.sqrt(math.fsum(b * b for b in moving)) * _UP
        if len(moving) > 1:
            raise _refused(n, "it joins several values that depend on the input")
        if target in _SCALINGS and all(isinstance(a, (Tensor, int, float)) for a in args):
            factor = args[1] if isinstance(args[0], Tensor) else args[0]
            if isinstance(factor, (int, float)) and isinstance(args[0], Tensor):
                return abs(1 / factor if target in _QUOTIENTS else factor) * first * _UP
        if target in (torch.mean, "mean"):
            # Equal weights 1 / n on disjoint sets of n entries.
            return math.sqrt(value.numel() / args[0].numel()) * first * _UP
        if target in _POOLS:
            options = {k: v for k, v in kwargs.items() if k not in ("input", "inplace")}
            return lipschitz_upper_bound(_POOLS[target](*args[1:], **options), tuple(args[0].shape[1:])) * first * _UP
        if target in _MAPS_BY_ONE or (target is F.dropout and kwargs.get("training") is False):
            return first
        raise _refused(n, "the operation is not known")

    def _module_bound(self, name: str, shape: tuple[int, ...]) -> float:
        try:
            return lipschitz_upper_bound(self.fetch_attr(name), shape)
        except UnboundedModuleError as error:
            raise UnboundedModuleError(str(error).replace("the model itself", f"'{name}'")) from None

    def _owned(self, node: Any) -> bool:
        """Whether a value is new memory that nothing else reads."""
        if not isinstance(node, torch.fx.Node) or len(node.users) > 1:
            return False
        return node.op == "call_module" and not isinstance(self.fetch_attr(str(node.target)), _VIEWS)


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
    plain = copy.deepcopy(model).cpu().double().eval()
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
    runner = _Bounds(torch.fx.GraphModule(plain, graph))
    with torch.no_grad():
        return float(runner.run(torch.zeros(1, *input_shape, dtype=torch.float64)).bound)


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


def _values(given: Any) -> Any:
    """The same arguments with values in place of pairs."""
    if isinstance(given, _Pair):
        return given.value
    if isinstance(given, dict):
        return {k: _values(v) for k, v in given.items()}
    return type(given)([_values(v) for v in given]) if isinstance(given, (tuple, list)) else given
