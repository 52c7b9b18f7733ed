"""A part of a graph as a layer: its values followed on one image, each with what is proven of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from skewconv.errors import UnboundedModuleError
from skewconv.nn.graph.operations import Operation, Value, operation_of, values_in
from skewconv.nn.graph.refusal import refused
from skewconv.nn.graph.values import IMAGE
from skewconv.nn.module_tools import first_tensor
from skewconv.nn.protocol.program import Float64Program
from skewconv.nn.protocol.questions import NoProgramError
from skewconv.nn.protocol.rules import Shape

# Images that change places in batches of one size stay where they are in those of another.
_BATCHES = (3, 5, 7)


class GraphPart(nn.Module):
    """The map from one value of a traced forward to a later one, through which all others depend on it.

    Args:
        root: the module whose forward was traced; its layers run, and its parameters are constants.
        source: the value that the part begins with.
        nodes: what is computed, in order.
        target: the value that it ends with, one of the nodes.
    """

    def __init__(
        self, root: nn.Module, source: torch.fx.Node, nodes: tuple[torch.fx.Node, ...], target: torch.fx.Node
    ) -> None:
        super().__init__()
        # In a tuple, since this is no owner of its layers: a copy in another precision is traced anew.
        self._root, self.source, self.nodes, self.target = (root,), source, nodes, target
        # Parts are made for one question, of a module that nobody changes meanwhile.
        self._known: dict[tuple[Shape, bool], _Followed] = {}

    def forward(self, x: Tensor) -> Tensor:
        """(batch, *input) -> (batch, *output), image by image as the graph says."""
        return self._followed(tuple(x.shape[1:]), proven=False).run(x)

    def lipschitz_upper_bound(self, input_shape: Shape) -> float:
        """The bound of the last value."""
        return self._followed(input_shape, proven=False).result.known.lipschitz

    def float64_program(self, input_shape: Shape) -> Float64Program:
        """Every value computed once, with the rounding errors of the last."""
        try:
            followed = self._followed(input_shape, proven=True)
        except UnboundedModuleError as refusal:
            raise NoProgramError(self._root[0], str(refusal)) from refusal
        shape, (lipschitz, norm, error, reach) = tuple(followed.result.tensor.shape[1:]), followed.result.known
        return Float64Program(followed.run, shape, lipschitz, norm, error, followed.operators, reach=reach)

    def _followed(self, input_shape: Shape, *, proven: bool) -> "_Followed":
        if (input_shape, proven) not in self._known:
            self._known[input_shape, proven] = _Follower(self, input_shape, proven=proven).follow()
        return self._known[input_shape, proven]

    def extra_repr(self) -> str:
        return f"{self.source.name} -> {', '.join(node.name for node in self.nodes)}"


@dataclass(frozen=True)
class _Followed:
    """The operations of a part in order, the place of its result among the values, and what is known of that."""

    operations: list[Operation]
    result: Value
    operators: tuple[Tensor, ...]

    def run(self, x: Tensor) -> Tensor:
        """(batch, *input) -> (batch, *output)."""
        values: list[Any] = [x]
        for operation in self.operations:
            given = [values[place] for place in operation.reads]
            made = operation.run(*given)
            values += made if isinstance(made, tuple) else (made,)
        result: Tensor = values[self.result.place]
        return result


class _Follower:
    """Runs the nodes on one image of random pixels, and derives an operation on batches for each."""

    def __init__(self, part: GraphPart, input_shape: Shape, *, proven: bool) -> None:
        (self.root,), self.part, self.proven = part._root, part, proven
        like = first_tensor(self.root)
        self.numbers = torch.Generator().manual_seed(0)
        image = torch.randn(1, *input_shape, generator=self.numbers, dtype=torch.float64).to(like.device)
        self.values: dict[Any, Any] = {part.source: Value(image, IMAGE, 0)}
        self.count = 1
        self.operations: list[Operation] = []
        self.operators: list[Tensor] = []

    def follow(self) -> _Followed:
        """Every node in turn."""
        with torch.no_grad():
            for position, node in enumerate(self.part.nodes):
                self.values[node] = self._value(node, position)
            result = self.values[self.part.target]
            if not isinstance(result, Value):
                raise refused(self.part.target, "the forward must return one tensor")
            followed = _Followed(self.operations, result, tuple(self.operators))
            self._refuse_mixed_images(followed)
        return followed

    def _refuse_mixed_images(self, followed: _Followed) -> None:
        """Compare the forward on batches with what was derived for one image."""
        like = self.values[self.part.source].tensor
        for images in _BATCHES:
            x = torch.randn(images, *like.shape[1:], dtype=torch.float64, generator=self.numbers).to(like.device)
            batch: dict[Any, Any] = {self.part.source: x.clone()}

            def given(node: torch.fx.Node, batch: dict[Any, Any] = batch) -> Any:
                return batch[node] if node in batch else self._given(node)

            for node in self.part.nodes:
                batch[node] = self._call(node, *torch.fx.node.map_arg((node.args, node.kwargs), given))
            whole, alone = batch[self.part.target], followed.run(x)
            if not isinstance(whole, torch.Tensor):
                raise refused(self.part.target, "for a batch it is something else than one tensor")
            size = 1 + float(torch.nan_to_num(whole).abs().max())
            close = whole.shape == alone.shape and torch.allclose(whole, alone, 0.0, 1e-9 * size, equal_nan=True)
            if not close:
                raise refused(self.part.target, "what leads to it depends on the other images of a batch")

    def _value(self, node: torch.fx.Node, position: int) -> Any:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self._given)
        before = [(tensor, tensor._version) for tensor in self._tensors()]
        made = self._call(node, *_plain((args, kwargs)))
        written = [tensor for tensor, version in before if tensor._version != version]
        self._check_written(node, position, written)
        if not _holds_a_tensor(made):
            # Sizes are those of one image. Of a batch only the first differs, and no operation may change that axis.
            if values_in((args, kwargs)) and not _asks_for_sizes(node):
                raise refused(node, "it makes a number of the input")
            return made
        operation = operation_of(node, args, kwargs, made, self._layer(node), self.count, proven=self.proven)
        if written:
            operation = operation.on_a_copy()
        self.operations.append(operation)
        self.operators += operation.operators
        self.count += len(operation.made) if isinstance(operation.made, tuple) else 1
        return operation.made

    def _given(self, node: torch.fx.Node) -> Any:
        if node not in self.values:
            self.values[node] = self._constant(node)
        return self.values[node]

    def _constant(self, node: torch.fx.Node) -> Any:
        if node.op == "get_attr":
            owner: Any = self.root
            for name in str(node.target).split("."):
                owner = getattr(owner, name)
            return owner
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self._given)
        if node.op == "call_module":
            raise refused(node, "a layer is called on a constant")
        return self._call(node, args, kwargs)

    def _call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        try:
            if node.op == "call_function":
                return target(*args, **kwargs)
            if node.op == "call_method":
                return getattr(args[0], target)(*args[1:], **kwargs)
            return self.root.get_submodule(str(target))(*args, **kwargs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise refused(node, f"it cannot be run on images of this shape ({error})") from error

    def _layer(self, node: torch.fx.Node) -> nn.Module | None:
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _tensors(self) -> Iterator[Tensor]:
        yield from (value.tensor for value in self._all_values())
        yield from (tensor for tensor in (*self.root.parameters(), *self.root.buffers()) if not tensor.is_inference())

    def _all_values(self) -> Iterator[Value]:
        for value in self.values.values():
            yield from value if isinstance(value, tuple) and value and isinstance(value[0], Value) else ()
            if isinstance(value, Value):
                yield value

    def _check_written(self, node: torch.fx.Node, position: int, written: list[Tensor]) -> None:
        """Refuse a write to memory that a later node, the result, or a parameter shares."""
        touched = {tensor.untyped_storage().data_ptr() for tensor in written}
        later = {given for after in self.part.nodes[position + 1 :] for given in after.all_input_nodes}
        kept = [self.values[other] for other in {*later, self.part.target} if other in self.values]
        read = [tensor for value in kept for tensor in _tensors_of(value)]
        read += [*self.root.parameters(), *self.root.buffers()]
        if touched & {tensor.untyped_storage().data_ptr() for tensor in read}:
            raise refused(node, "it changes a value in place that is used again")


def _asks_for_sizes(node: torch.fx.Node) -> bool:
    if node.target is getattr:
        return node.args[1] in ("shape", "ndim", "dtype", "device")
    return node.op == "call_method" and node.target in ("size", "dim", "ndimension", "numel")


def _holds_a_tensor(made: Any) -> bool:
    return isinstance(made, Tensor) or (isinstance(made, (tuple, list)) and any(map(_holds_a_tensor, made)))


def _plain(given: Any) -> Any:
    """Tensors in the place of values."""
    if isinstance(given, Value):
        return given.tensor
    if isinstance(given, dict):
        return {key: _plain(value) for key, value in given.items()}
    if isinstance(given, (tuple, list)) and not isinstance(given, torch.Size):
        return type(given)([_plain(value) for value in given])
    return given


def _tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Value):
        return [value.tensor]
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors_of(item)] if isinstance(value, tuple | list) else []
