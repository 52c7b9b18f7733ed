"""A part of a user's forward as a primitive: sums, joins, multiples and rearrangements between known layers.

The part is followed on one image, and each value gets bounds by those of the values that it is made of: by its layer,
by the layer that a function such as ``F.relu`` is, or by a rule below. What is not known is refused by name.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.node import map_aggregate, map_arg

from skewconv.errors import UnboundedModuleError
from skewconv.nn.bounds import IDENTITY, AffineBound, Bounds, Shape, bound_of, joined, register_bound
from skewconv.nn.module_tools import UnsupportedLayerError, first_tensor
from skewconv.nn.primitives import linear_module
from skewconv.rigor import factor_up, sqrt_up, vector_norm_up

_REARRANGEMENTS: set[Any] = {
    *(torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.chunk, torch.split, torch.narrow),
    *(torch.squeeze, torch.unsqueeze, torch.movedim, torch.flip, torch.roll, torch.clone, operator.getitem),
    *(F.pixel_unshuffle, F.pixel_shuffle, torch.pixel_shuffle, torch.pixel_unshuffle),
    *("flatten", "view", "reshape", "permute", "transpose", "contiguous", "chunk", "split", "narrow", "unflatten"),
    *("squeeze", "unsqueeze", "clone", "movedim", "flip", "roll"),
}
_SUMS: set[Any] = {operator.add, torch.add, "add", "add_", operator.sub, torch.sub, "sub", "sub_"}
_QUOTIENTS: set[Any] = {operator.truediv, torch.div, "div", "div_"}
_MULTIPLES: set[Any] = {operator.mul, torch.mul, "mul", "mul_", *_QUOTIENTS}
# Functions that are layers: they take the layer's arguments after the input.
_LAYERS: dict[Any, type[nn.Module]] = {
    **dict.fromkeys((torch.relu, torch.relu_, F.relu, "relu", "relu_"), nn.ReLU),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid"), nn.Sigmoid),
    **{getattr(F, f"avg_pool{n}d"): getattr(nn, f"AvgPool{n}d") for n in (1, 2, 3)},
    **{getattr(F, f"adaptive_avg_pool{n}d"): getattr(nn, f"AdaptiveAvgPool{n}d") for n in (1, 2, 3)},
    **{getattr(room, f"max_pool{n}d"): getattr(nn, f"MaxPool{n}d") for n in (1, 2, 3) for room in (F, torch)},
    F.relu6: nn.ReLU6,
    F.hardtanh: nn.Hardtanh,
    F.leaky_relu: nn.LeakyReLU,
    F.elu: nn.ELU,
    F.celu: nn.CELU,
    F.selu: nn.SELU,
    F.silu: nn.SiLU,
    F.gelu: nn.GELU,
    F.softsign: nn.Softsign,
    F.logsigmoid: nn.LogSigmoid,
}
_DROPOUTS: set[Any] = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.feature_alpha_dropout, F.alpha_dropout}
_UP = factor_up(8)

#: (the layer, the shape of one input, the node that calls it) -> what is proven of it
LayerBounds: TypeAlias = Callable[[nn.Module, Shape, torch.fx.Node], Bounds]
Runs: TypeAlias = Mapping[torch.fx.Node, Callable[[Tensor], Tensor]]


class OperationRefusedError(UnboundedModuleError):
    """An operation of which nothing is known."""


def refused(node: torch.fx.Node, reason: str) -> OperationRefusedError:
    name = getattr(node.target, "__name__", node.target)
    return OperationRefusedError(
        f"the operation '{node.name}' ({name}) in its forward: {reason}; write it with layers and operations that are "
        "known (sums, cat, multiples, views, means, layers of torch.nn and skewconv.nn)"
    )


class Value:
    """A tensor of one image, (1, *shape), and its bounds as a function of the part's input."""

    def __init__(self, tensor: Tensor, bounds: Bounds) -> None:
        self.tensor, self.bounds = tensor, bounds


class GraphPart(nn.Module):
    """The map from one value of a traced forward (source) to a later one (target), through layers of the root."""

    def __init__(
        self, root: nn.Module, source: torch.fx.Node, nodes: tuple[torch.fx.Node, ...], target: torch.fx.Node
    ) -> None:
        super().__init__()
        # In a tuple, since this is no owner of its layers.
        self._root, self.source, self.nodes, self.target = (root,), source, nodes, target

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, {})

    def run(self, x: Tensor, layers: Runs) -> Tensor:
        """(batch, *input) -> (batch, *output); layers at these nodes are computed by these functions."""
        if not isinstance(x, Tensor):
            raise refused(self.source, "it is something else than one tensor")
        # Parts are followed, and run, in the precision of their constants; the input is left alone.
        values: dict[torch.fx.Node, Any] = {self.source: x.to(first_tensor(self._root[0], x).dtype, copy=True)}
        for node in self.nodes:
            args, kwargs = self._arguments(node, values)
            values[node] = layers[node](args[0]) if node in layers else self._call(node, args, kwargs)
        result: Tensor = values[self.target]
        return result

    def followed(self, input_shape: Shape, layer_bounds: LayerBounds) -> Value:
        """The result for one image with its bounds, by those of the layers; or a refusal of the traced module."""
        (root,) = self._root
        draw = torch.randn(1, *input_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        values: dict[torch.fx.Node, Any] = {self.source: Value(draw.to(first_tensor(root).device), IDENTITY)}
        try:
            with torch.no_grad():
                for position, node in enumerate(self.nodes):
                    values[node] = self._value(node, position, values, layer_bounds)
            result = values[self.target]
            if not isinstance(result, Value):
                raise refused(self.target, "the forward must return one tensor")
            return result
        except UnboundedModuleError as error:
            raise UnsupportedLayerError(root, f"its graph gives no bound: {error}") from error

    def _value(
        self, node: torch.fx.Node, position: int, values: dict[torch.fx.Node, Any], layer_bounds: LayerBounds
    ) -> Any:
        (root,) = self._root
        args, kwargs = self._arguments(node, values)
        constants = [t for t in (*root.parameters(), *root.buffers()) if not t.is_inference()]
        before = [(t, t._version) for t in (*(value.tensor for value in _leaves(values, Value)), *constants)]
        made = self._call(node, _plain(args), _plain(kwargs))
        written = {t.untyped_storage().data_ptr() for t, version in before if t._version != version}
        if written:
            later = {given for after in self.nodes[position + 1 :] for given in after.all_input_nodes} | {self.target}
            used = [v.tensor for v in _leaves([values[other] for other in later if other in values], Value)]
            if written & {t.untyped_storage().data_ptr() for t in (*used, *root.parameters(), *root.buffers())}:
                raise refused(node, "it changes a value in place that is used again")
        tensors, moving = _leaves(made, Tensor), _leaves((args, kwargs), Value)
        if not tensors:
            # Sizes are those of one image. Of a batch only the first differs, and no operation may change that axis.
            if moving and not _asks_for_sizes(node):
                raise refused(node, "it makes a number of the input")
            return made
        if any(tensor.dtype != torch.float64 for tensor in tensors):
            raise refused(node, "it changes the precision, or the bits are taken for those of another type")
        if any(tensor.dim() == 0 or len(tensor) != 1 for tensor in tensors):
            raise refused(node, "it mixes the images of a batch, or moves its first axis")
        if not moving:
            raise refused(node, "it makes a tensor of its own")
        call, named = _Call(node, args, kwargs, made, moving), node.op == "call_module"
        try:
            if named:
                return _as_layer(call, root.get_submodule(str(node.target)), layer_bounds)
            if (layer := _layer_of_function(node.target, _plain(args), _plain(kwargs))) is not None:
                return _as_layer(call, layer, layer_bounds, called=True)
            if node.target not in _RULES:
                raise call.refused("the operation is not known")
            return _RULES[node.target](call)
        except OperationRefusedError:
            raise
        except UnboundedModuleError as error:
            where = str(node.target) if named else node.name
            raise UnboundedModuleError(str(error).replace("the model itself", f"'{where}'")) from None

    def _arguments(self, node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> Any:
        return map_arg((node.args, node.kwargs), lambda n: values[n] if n in values else self._constant(n))

    def _constant(self, node: torch.fx.Node) -> Any:
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self._root[0])
        if node.op == "call_module":
            raise refused(node, "a layer is called on a constant")
        return self._call(node, *map_arg((node.args, node.kwargs), self._constant))

    def _call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        try:
            if node.op == "call_function":
                return target(*args, **kwargs)
            if node.op == "call_method":
                return getattr(args[0], target)(*args[1:], **kwargs)
            return self._root[0].get_submodule(str(target))(*args, **kwargs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise refused(node, f"it cannot be run on images of this shape ({error})") from error

    def extra_repr(self) -> str:
        return f"{self.source.name} -> {', '.join(node.name for node in self.nodes)}"


@register_bound(GraphPart)
def _graph_part(part: GraphPart, shape: Shape) -> float:
    def lipschitz_only(layer: nn.Module, given: Shape, node: torch.fx.Node) -> Bounds:
        bound = bound_of(layer, given)
        return Bounds(bound, AffineBound(bound, 0.0))

    return part.followed(shape, lipschitz_only).bounds.lipschitz


class _Call(NamedTuple):
    """One call in a graph: arguments with values among them, what it made, and these values."""

    node: torch.fx.Node
    args: Any
    kwargs: Any
    made: Any
    moving: list[Value]

    def refused(self, reason: str) -> OperationRefusedError:
        return refused(self.node, reason)


def _layer_of_function(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> nn.Module | None:
    """The layer that a call of a function or a method should be, to be compared with it; None if it is none."""
    try:
        if target in _DROPOUTS:
            return nn.Identity()
        if target is F.linear:
            return linear_module(*args[1:], **kwargs)
        if target in _LAYERS:
            layer = _LAYERS[target](*args[1:], **kwargs)
            if hasattr(layer, "inplace"):
                layer.inplace = False  # type: ignore[assignment]
            return layer
    except (TypeError, ValueError):
        return None  # an argument that the layer does not have
    return None


def _as_layer(call: _Call, layer: nn.Module, layer_bounds: LayerBounds, *, called: bool = False) -> Value:
    first = call.args[0] if call.args else None
    if len(call.moving) != 1 or not isinstance(first, Value) or (not called and (len(call.args) != 1 or call.kwargs)):
        raise call.refused("a bound is known for layers of one input only")
    if not isinstance(call.made, Tensor):
        raise call.refused("it returns something else than one tensor")
    made = layer(first.tensor.clone()) if called else call.made
    if not (isinstance(made, Tensor) and torch.allclose(made, call.made, rtol=1e-12, atol=1e-12, equal_nan=True)):
        raise call.refused(f"it is not what {type(layer).__name__} computes, or it changes its input in place")
    return Value(call.made, first.bounds.then(layer_bounds(layer, tuple(first.tensor.shape[1:]), call.node)))


def _sum(call: _Call) -> Value:
    if call.kwargs or len(call.args) != 2 or not isinstance(call.made, Tensor):
        raise call.refused("it is no plain sum of two")
    a, b = call.args
    if isinstance(a, Value) and isinstance(b, Value):
        if a.tensor.dim() != b.tensor.dim():
            raise call.refused("its terms have different numbers of axes, so that it would mix the images of a batch")
        return Value(call.made, _spread(a, call.made).plus(_spread(b, call.made)).rounded())
    value, other = (a, b) if isinstance(a, Value) else (b, a)
    constant = _constant(other, value)
    if constant is None:
        raise call.refused("it adds something that is no finite number or tensor of one image")
    size = float(vector_norm_up(constant.expand_as(call.made).flatten()))
    return Value(call.made, _spread(value, call.made).shifted(size).rounded())


def _multiple(call: _Call) -> Value:
    if call.kwargs or len(call.args) != 2 or len(call.moving) != 1:
        raise call.refused("it joins several values that depend on the input, or is no plain multiple")
    a, b = call.args
    divides = call.node.target in _QUOTIENTS
    if divides and not isinstance(a, Value):
        raise call.refused("it divides by a value that depends on the input")
    value, other = (a, b) if isinstance(a, Value) else (b, a)
    constant = _constant(other, value)
    if constant is None or call.made.shape != value.tensor.shape:
        raise call.refused("it multiplies by something that is no finite number or tensor of the value's shape")
    sizes = constant.abs()
    if divides and float(sizes.min()) == 0.0:
        raise call.refused("it divides by zero")
    factor = (1 / float(sizes.min()) if divides else float(sizes.max())) * _UP
    # Some devices multiply by a reciprocal.
    return Value(call.made, value.bounds.scale(factor).rounded(4))


def _join(call: _Call) -> Value:
    names = dict(zip(("tensors", "dim"), call.args, strict=False)) | call.kwargs
    parts, dim = names.get("tensors"), names.get("dim", 0)
    if not isinstance(parts, (tuple, list)) or not all(isinstance(part, Value) for part in parts):
        raise call.refused("it joins constants, or values that are not listed")
    if type(dim) is not int or dim % call.made.dim() == 0 or not set(names) <= {"tensors", "dim"}:
        raise call.refused("it joins along the batch")
    return Value(call.made, joined([part.bounds for part in parts]))


def _mean(call: _Call) -> Value:
    names = dict(zip(("input", "dim", "keepdim"), call.args, strict=False)) | call.kwargs
    value, dim = names.get("input"), names.get("dim")
    if not set(names) <= {"input", "dim", "keepdim"} or not isinstance(value, Value) or dim is None:
        raise call.refused("its axes must be named, and nothing else")
    axes = sorted({d % value.tensor.dim() for d in ((dim,) if isinstance(dim, int) else dim)})
    if not axes or axes[0] == 0:
        raise call.refused("it is a mean over the batch")
    count = value.tensor.numel() // max(1, call.made.numel())
    # Equal weights 1 / n on disjoint sets of n entries, none of them negative: what a sum rounds by is a share of the
    # mean of the sizes, which has the same bound.
    return Value(call.made, value.bounds.scale(sqrt_up(Fraction(1, count))).rounded(count + 4))


def _rearrangement(call: _Call) -> Any:
    """Entries are moved and left out, never repeated: shown by moving their numbers."""
    first, target = call.args[0], call.node.target
    if target is operator.getitem and isinstance(first, (tuple, list)):
        if type(call.args[1]) is not int:
            raise call.refused("one of several values is picked by a number only")
        return first[call.args[1]]
    if len(call.moving) != 1 or not isinstance(first, Value):
        raise call.refused("it joins several values that depend on the input")
    numbers = torch.arange(first.tensor.numel(), dtype=torch.float64, device=first.tensor.device)
    args, kwargs = (_plain(given, numbers.view_as(first.tensor)) for given in (call.args, call.kwargs))
    moved = getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)
    values = []
    for index, made in zip(_leaves(moved, Tensor), _leaves(call.made, Tensor), strict=True):
        places = index.flatten().long()
        if len(places.unique()) != len(places) or not torch.equal(first.tensor.flatten()[places], made.flatten()):
            raise call.refused("it may repeat entries, or changes them")
        values.append(Value(made, first.bounds))
    return tuple(values) if isinstance(call.made, (tuple, list)) else values[0]


_RULES: dict[Any, Callable[[_Call], Any]] = {
    **dict.fromkeys(_SUMS, _sum),
    **dict.fromkeys(_MULTIPLES, _multiple),
    **dict.fromkeys((torch.cat, torch.concat), _join),
    **dict.fromkeys((torch.mean, "mean"), _mean),
    **dict.fromkeys(_REARRANGEMENTS, _rearrangement),
    **dict.fromkeys((operator.neg, torch.neg, "neg"), lambda call: Value(call.made, call.moving[0].bounds)),
}


def _spread(value: Value, made: Tensor) -> Bounds:
    """A value whose entries are repeated to the shape of a sum: the norm grows by the root."""
    copies = Fraction(made.numel(), value.tensor.numel())
    return value.bounds if copies == 1 else value.bounds.scale(sqrt_up(copies))


def _constant(given: Any, value: Value) -> Tensor | None:
    """A number or a tensor of one image in float64; None for anything else."""
    if isinstance(given, bool) or not isinstance(given, (int, float, Tensor)):
        return None
    if (isinstance(given, Tensor) and given.is_complex()) or (isinstance(given, int) and abs(given) > 2**53):
        return None
    # A number goes into float64 at once: the default precision may be another.
    constant = torch.as_tensor(given, dtype=torch.float64, device=value.tensor.device).detach()
    batch = constant.dim() == value.tensor.dim() and len(constant) != 1
    if batch or constant.dim() > value.tensor.dim() or not bool(torch.isfinite(constant).all()):
        return None
    return constant


def _asks_for_sizes(node: torch.fx.Node) -> bool:
    if node.target is getattr:
        return node.args[1] in ("shape", "ndim", "dtype", "device")
    return node.op == "call_method" and node.target in ("size", "dim", "ndimension", "numel")


def _leaves(given: Any, kind: type) -> list[Any]:
    found: list[Any] = []
    map_aggregate(given, lambda leaf: found.append(leaf) if isinstance(leaf, kind) else None)
    return found


def _plain(given: Any, instead: Tensor | None = None) -> Any:
    """Arguments with tensors in the place of values, or the one given."""
    if instead is not None:
        return map_aggregate(given, lambda leaf: instead if isinstance(leaf, Value) else leaf)
    return map_aggregate(given, lambda leaf: leaf.tensor if isinstance(leaf, Value) else leaf)
