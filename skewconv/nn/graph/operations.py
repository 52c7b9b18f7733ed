"""What each operation between layers does to what is known: sums, joins, multiples, means, rearrangements."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.errors import UnboundedModuleError
from skewconv.nn.graph.functions import layer_of_function
from skewconv.nn.graph.refusal import refused
from skewconv.nn.graph.values import Known, joined
from skewconv.nn.protocol.bounds import lipschitz_upper_bound
from skewconv.nn.protocol.program import NOTHING, Float64Program, Growth
from skewconv.nn.protocol.questions import float64_program
from skewconv.rigor import factor_up, sqrt_up, vector_norm_up

_REARRANGEMENTS: set[Any] = {
    *(torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.chunk, torch.split, torch.narrow),
    *(torch.squeeze, torch.unsqueeze, torch.movedim, torch.flip, torch.roll, torch.clone, operator.getitem),
    *(F.pixel_unshuffle, F.pixel_shuffle, torch.pixel_shuffle, torch.pixel_unshuffle),
    *("flatten", "view", "reshape", "permute", "transpose", "contiguous", "chunk", "split", "narrow", "unflatten"),
    *("squeeze", "unsqueeze", "clone", "movedim", "flip", "roll"),
}
_DIFFERENCES: set[Any] = {operator.sub, operator.isub, torch.sub, "sub", "sub_"}
_SUMS: set[Any] = {operator.add, operator.iadd, torch.add, "add", "add_", *_DIFFERENCES}
_QUOTIENTS: set[Any] = {operator.truediv, operator.itruediv, torch.div, "div", "div_"}
_MULTIPLES: set[Any] = {operator.mul, operator.imul, torch.mul, "mul", "mul_", *_QUOTIENTS}
_JOINS: set[Any] = {torch.cat, torch.concat}
_MEANS: set[Any] = {torch.mean, "mean"}
_UP = factor_up(8)


@dataclass(frozen=True)
class Value:
    """A tensor of one image, (1, *shape), what is known of it, and its place among the values of a run."""

    tensor: Tensor
    known: Known
    place: int


@dataclass(frozen=True)
class Operation:
    """An operation on batches: the places it reads, what it makes of them, and the value or values of one image."""

    reads: tuple[int, ...]
    run: Callable[..., Any]
    made: Any
    operators: tuple[Tensor, ...] = field(default=())

    def on_a_copy(self) -> "Operation":
        """The same, where the run writes to what it reads."""
        run = self.run
        return replace(self, run=lambda *given: run(*(tensor.clone() for tensor in given)))


class _Call(NamedTuple):
    """One call in a graph: its target, arguments with values among them, the result, and the place of its first."""

    target: Any
    args: Any
    kwargs: Any
    made: Any
    place: int
    moving: list[Value]

    def value(self, known: Known) -> Value:
        return Value(self.made, known.computed(), self.place)


def operation_of(
    node: torch.fx.Node, args: Any, kwargs: Any, made: Any, layer: nn.Module | None, place: int, *, proven: bool
) -> Operation:
    """The operation that a node of a graph stands for, or a refusal by name.

    Args:
        node: the node.
        args, kwargs: of its call; what depends on the image is a :class:`Value`, everything else itself.
        made: what it gave for one image.
        layer: the layer that it calls, if it does.
        place: of its first result among the values of a run.
        proven: whether the rounding error is asked for, or the Lipschitz bound alone.
    """
    call = _Call(node.target, args, kwargs, made, place, values_in((args, kwargs)))
    if any(tensor.dtype != torch.float64 for tensor in _tensors(made)):
        raise refused(node, "it changes the precision, or the bits are taken for those of another type")
    if any(len(tensor) != 1 for tensor in _tensors(made) if tensor.dim()) or not all(t.dim() for t in _tensors(made)):
        raise refused(node, "it mixes the images of a batch, or moves its first axis")
    if not call.moving:
        raise refused(node, "it makes a tensor of its own")
    try:
        found = _as_layer(call, layer, proven) if layer is not None else _between_layers(call, proven)
    except UnboundedModuleError as error:
        where = str(node.target) if layer is not None else node.name
        raise UnboundedModuleError(str(error).replace("the model itself", f"'{where}'")) from None
    if isinstance(found, str):
        raise refused(node, found)
    return found


def _between_layers(call: _Call, proven: bool) -> Operation | str:
    function = layer_of_function(call.target, *_without_values(call))
    if function is not None:
        return _as_layer(call, function, proven, called=True)
    for targets, rule in (
        (_SUMS, _sum),
        (_MULTIPLES, _multiple),
        (_JOINS, _join),
        (_MEANS, _mean),
        (_REARRANGEMENTS, _rearrangement),
        ({operator.neg, torch.neg, "neg"}, _negative),
    ):
        if call.target in targets:
            return rule(call)
    return "the operation is not known"


def _as_layer(call: _Call, layer: nn.Module, proven: bool, *, called: bool = False) -> Operation | str:
    """A layer on one value, by its own program."""
    first = call.args[0] if call.args else None
    if len(call.moving) != 1 or not isinstance(first, Value) or (not called and (len(call.args) != 1 or call.kwargs)):
        return "a bound is known for layers of one input only"
    if not isinstance(call.made, Tensor):
        return "it returns something else than one tensor"
    shape = tuple(first.tensor.shape[1:])
    if called and not torch.allclose(layer(first.tensor.clone()), call.made, rtol=1e-12, atol=1e-12):
        return f"it is not what {type(layer).__name__} computes, or it changes its input in place"
    if proven:
        program = float64_program(layer, shape)
    else:
        bound = lipschitz_upper_bound(layer, shape)
        program = Float64Program(layer, tuple(call.made.shape[1:]), bound, Growth(bound, 0.0), NOTHING)
    return Operation((first.place,), program.run, call.value(first.known.through(program)), program.operators)


def _sum(call: _Call) -> Operation | str:
    if call.kwargs or len(call.args) != 2 or not isinstance(call.made, Tensor):
        return "it is no plain sum of two"
    a, b = call.args
    sign = -1 if call.target in _DIFFERENCES else 1
    if isinstance(a, Value) and isinstance(b, Value):
        if a.tensor.dim() != b.tensor.dim():
            return "its terms have different numbers of axes, so that it would mix the images of a batch"
        known = _spread(a, call.made).plus(_spread(b, call.made)).rounded(1)
        return Operation((a.place, b.place), lambda x, y: x + y if sign > 0 else x - y, call.value(known))
    value, other = (a, b) if isinstance(a, Value) else (b, a)
    constant = _constant(other, value)
    if constant is None:
        return "it adds something that is no finite number or tensor of one image"
    size = float(vector_norm_up(constant.expand_as(call.made).flatten()))
    known = _spread(value, call.made).shifted(size).rounded(1)
    first = isinstance(a, Value)

    def run(x: Tensor) -> Tensor:
        left, right = (x, constant) if first else (constant, x)
        return left + right if sign > 0 else left - right

    return Operation((value.place,), run, call.value(known), (constant,))


def _multiple(call: _Call) -> Operation | str:
    if call.kwargs or len(call.args) != 2 or len(call.moving) != 1:
        return "it joins several values that depend on the input, or is no plain multiple"
    a, b = call.args
    divides = call.target in _QUOTIENTS
    if divides and not isinstance(a, Value):
        return "it divides by a value that depends on the input"
    value, other = (a, b) if isinstance(a, Value) else (b, a)
    constant = _constant(other, value)
    if constant is None or call.made.shape != value.tensor.shape:
        return "it multiplies by something that is no finite number or tensor of the value's shape"
    sizes = constant.abs()
    if divides and float(sizes.min()) == 0.0:
        return "it divides by zero"
    factor = (1 / float(sizes.min()) if divides else float(sizes.max())) * _UP
    # Some devices multiply by a reciprocal.
    known = value.known.stretched(factor).rounded(4)
    run = (lambda x: x / constant) if divides else (lambda x: x * constant)
    return Operation((value.place,), run, call.value(known), (constant,))


def _negative(call: _Call) -> Operation | str:
    (value,) = call.moving
    return Operation((value.place,), torch.neg, call.value(value.known))


def _join(call: _Call) -> Operation | str:
    names = dict(zip(("tensors", "dim"), call.args, strict=False)) | call.kwargs
    parts, dim = names.get("tensors"), names.get("dim", 0)
    if not isinstance(parts, (tuple, list)) or not all(isinstance(part, Value) for part in parts):
        return "it joins constants, or values that are not listed"
    axis = dim % call.made.dim() if type(dim) is int else 0
    if axis == 0 or not set(names) <= {"tensors", "dim"}:
        return "it joins along the batch"
    known = joined([part.known for part in parts])
    return Operation(tuple(part.place for part in parts), lambda *given: torch.cat(given, axis), call.value(known))


def _mean(call: _Call) -> Operation | str:
    names = dict(zip(("input", "dim", "keepdim"), call.args, strict=False)) | call.kwargs
    value, dim, keepdim = names.get("input"), names.get("dim"), names.get("keepdim", False)
    if not set(names) <= {"input", "dim", "keepdim"} or not isinstance(value, Value) or dim is None:
        return "its axes must be named, and nothing else"
    axes = sorted({d % value.tensor.dim() for d in ((dim,) if isinstance(dim, int) else dim)})
    if not axes or axes[0] == 0:
        return "it is a mean over the batch"
    count = value.tensor.numel() // max(1, call.made.numel())
    # Equal weights 1 / n on disjoint sets of n entries, none of them negative: what a sum rounds by is a share of the
    # mean of the sizes, which has the same bound.
    known = value.known.stretched(sqrt_up(Fraction(1, count))).rounded(count + 4)
    return Operation((value.place,), lambda x: x.mean(axes, bool(keepdim)), call.value(known))


def _rearrangement(call: _Call) -> Operation | str:
    """Entries are moved and left out, never repeated: shown by moving their numbers."""
    if call.target is operator.getitem and isinstance(call.args[0], tuple) and len(call.moving) > 0:
        return _picked(call)
    if len(call.moving) != 1 or not isinstance(call.args[0], Value):
        return "it joins several values that depend on the input"
    (value,) = call.moving
    numbers = torch.arange(value.tensor.numel(), dtype=torch.float64, device=value.tensor.device)
    args, kwargs = _without_values(call, numbers.view_as(value.tensor))
    moved = getattr(args[0], call.target)(*args[1:], **kwargs) if isinstance(call.target, str) else None
    moved = call.target(*args, **kwargs) if moved is None else moved
    several = isinstance(call.made, (tuple, list))
    runs, values = [], []
    for offset, (index, made) in enumerate(zip(_tensors(moved), _tensors(call.made), strict=True)):
        places = index.flatten().long()
        if len(places.unique()) != len(places) or not torch.equal(value.tensor.flatten()[places], made.flatten()):
            return "it may repeat entries, or changes them"
        runs.append(_gather(places, tuple(made.shape[1:]), value.tensor.numel()))
        values.append(Value(made, value.known, call.place + offset))
    if several:
        return Operation((value.place,), lambda x: tuple(run(x) for run in runs), tuple(values))
    return Operation((value.place,), runs[0], values[0])


def _picked(call: _Call) -> Operation | str:
    """One of several values."""
    several, index = call.args
    if type(index) is not int:
        return "one of several values is picked by a number only"
    value = several[index]
    return Operation((value.place,), lambda x: x, replace(value, place=call.place))


def _gather(places: Tensor, shape: tuple[int, ...], entries: int) -> Callable[[Tensor], Tensor]:
    if len(places) == entries and torch.equal(places, torch.arange(entries, device=places.device)):
        return lambda x: x.reshape(len(x), *shape)
    return lambda x: x.flatten(1)[:, places].reshape(len(x), *shape)


def _spread(value: Value, made: Tensor) -> Known:
    """A value whose entries are repeated to the shape of a sum."""
    return value.known.repeated(Fraction(made.numel(), value.tensor.numel()))


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


def values_in(given: Any) -> list[Value]:
    """Every value in nested arguments."""
    if isinstance(given, Value):
        return [given]
    items = given.values() if isinstance(given, dict) else given if isinstance(given, (tuple, list)) else ()
    return [value for item in items for value in values_in(item)]


def _without_values(call: _Call, instead: Tensor | None = None) -> Any:
    """Arguments and keywords with tensors in the place of values, or the one given."""

    def plain(given: Any) -> Any:
        if isinstance(given, Value):
            return given.tensor if instead is None else instead
        if isinstance(given, dict):
            return {key: plain(item) for key, item in given.items()}
        if isinstance(given, (tuple, list)) and not isinstance(given, torch.Size):
            return type(given)([plain(item) for item in given])
        return given

    return plain(call.args), plain(call.kwargs)


def _tensors(made: Any) -> list[Tensor]:
    """Every tensor in nested results."""
    if isinstance(made, (tuple, list)):
        return [tensor for item in made for tensor in _tensors(item)]
    return [made] if isinstance(made, Tensor) else []
