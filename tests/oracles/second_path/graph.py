"""Modules of somebody's own: the graph of a forward runs as it stands, on whole batches, with this path's layers.

The first path derives an operation of its own for every node and adds up rounding errors; here the functions of the
forward are called as they are, and only the largest stretching of each is followed. Shared is the graph that torch.fx
traces, and which layer a function such as ``F.relu`` stands for.
"""

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.fx
from torch import Tensor, nn

from skewconv.errors import UnboundedModuleError
from skewconv.nn.graph import layer_of_function, traced_graph
from tests.oracles.second_path.layer import Layer

Rule = Callable[[str, Any, tuple[int, ...]], Layer]

_MARGIN = 1 + 1e-12
_MOVES = {"flatten", "view", "reshape", "permute", "transpose", "contiguous", "chunk", "split", "narrow", "unflatten"}
_MOVES |= {"squeeze", "unsqueeze", "clone", "movedim", "flip", "roll", "getitem", "pixel_shuffle", "pixel_unshuffle"}
_SIZES = {"size", "dim", "ndimension", "numel", "getattr"}


class _Seen(NamedTuple):
    """A value for a batch of two images, how far it moves when the images move by one, and whether it is made of them.

    What is made of images may not move at all, behind a layer whose weights are zero.
    """

    value: Any
    slope: float
    is_of_images: bool = True


def graph_layers(name: str, module: nn.Module, shape: tuple[int, ...], rule: Rule) -> list[Layer]:
    """The whole forward as one layer, and its last layer apart where that is a matrix on all that came before."""
    graph = traced_graph(module)
    walk = _Walk(name, module, graph, rule)
    seen = walk.follow(torch.rand(2, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    *_, last, output = (node for node in graph.nodes)
    (result,) = output.args
    if not isinstance(result, torch.fx.Node) or result is not last or not isinstance(seen[result].value, Tensor):
        raise walk.refused(last, "the forward does not end with the tensor that it returns")
    if not seen[result].is_of_images:
        raise walk.refused(last, "the result does not depend on the image")
    head = walk.layers.get(result)
    if head is None or head.matrix is None or result.args[0] not in seen:
        return [Layer(walk.runner(result), seen[result].slope)]
    before: Any = result.args[0]
    return [Layer(walk.runner(before), seen[before].slope), head]


class _Walk:
    def __init__(self, name: str, root: nn.Module, graph: torch.fx.Graph, rule: Rule) -> None:
        self.name, self.root, self.graph, self.rule = name, root, graph, rule
        self.layers: dict[torch.fx.Node, Layer] = {}

    def refused(self, node: torch.fx.Node, reason: str) -> UnboundedModuleError:
        target = getattr(node.target, "__name__", node.target)
        where = f"'{node.name}' ({target}) in the forward of '{self.name}' ({type(self.root).__name__})"
        return UnboundedModuleError(f"certificates of {where} cannot be checked: {reason}")

    def follow(self, images: Tensor) -> dict[torch.fx.Node, _Seen]:
        """Every node but the last, which only returns."""
        seen: dict[torch.fx.Node, _Seen] = {}
        for node in self.graph.nodes:
            if node.op == "placeholder":
                seen[node] = _Seen(images, 1.0)
            elif node.op != "output":
                seen[node] = self._seen(node, seen)
        return seen

    def runner(self, target: torch.fx.Node) -> Callable[[Tensor], Tensor]:
        """The forward up to a value."""

        def run(x: Tensor) -> Tensor:
            values: dict[torch.fx.Node, Any] = {}
            for node in self.graph.nodes:
                values[node] = x.clone() if node.op == "placeholder" else self._call(node, values.__getitem__)
                if node is target:
                    break
            result: Tensor = values[target]
            return result

        return run

    def _call(self, node: torch.fx.Node, value_of: Callable[[torch.fx.Node], Any]) -> Any:
        args: Any
        kwargs: Any
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value_of)
        target: Any = node.target
        if node.op == "get_attr":
            return operator.attrgetter(target)(self.root)
        if node.op == "call_module":
            return self.layers[node].run(*args, **kwargs)
        try:
            return (
                getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)
            )
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise self.refused(node, f"it cannot be run on images of this shape ({error})") from error

    def _seen(self, node: torch.fx.Node, seen: dict[torch.fx.Node, _Seen]) -> _Seen:
        given_nodes: list[torch.fx.Node] = []
        torch.fx.node.map_arg((node.args, node.kwargs), given_nodes.append)
        # As often as each is given: x * x has two.
        moving = [given for given in given_nodes if seen[given].is_of_images]
        name = str(getattr(node.target, "__name__", node.target))
        if node.op == "call_module":
            if len(node.args) != 1 or node.kwargs or given_nodes != moving:
                raise self.refused(node, "a layer takes one value that depends on the image")
            module, given = self.root.get_submodule(str(node.target)), seen[moving[0]]
            self.layers[node] = self.rule(str(node.target), module, tuple(given.value.shape[1:]))
            if getattr(module, "inplace", False):
                self._check_alone(node, seen)
            return _Seen(self.layers[node].run(given.value), given.slope * self.layers[node].lipschitz)
        if name in ("iadd", "isub", "imul", "itruediv") or (name.endswith("_") and not name.endswith("__")):
            self._check_alone(node, seen)
        value = self._call(node, lambda given: seen[given].value)
        if not moving or (name in _SIZES and not isinstance(value, Tensor)):
            return _Seen(value, 0.0, is_of_images=False)
        slope = self._slope(node, name, [seen[given] for given in moving], value, seen)
        if slope is None:
            raise self.refused(node, "the second path does not know it")
        return _Seen(value, slope * _MARGIN)

    def _slope(
        self, node: torch.fx.Node, name: str, moving: list[_Seen], value: Any, seen: dict[torch.fx.Node, _Seen]
    ) -> float | None:
        first, plain = moving[0], name.lstrip("_").rstrip("_")
        args: Any
        kwargs: Any
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda given: seen[given].value)
        layer = layer_of_function(node.target, args, kwargs)
        if layer is not None and len(moving) == 1:
            rule = self.rule(node.name, layer, tuple(first.value.shape[1:]))
            return first.slope * rule.lipschitz if torch.allclose(rule.run(args[0]), value, atol=1e-9) else None
        if plain in ("add", "sub", "iadd", "isub") and not kwargs and isinstance(value, Tensor):
            if len({part.value.dim() for part in moving}) > 1:
                return None
            terms = [seen[given] for given in node.args if isinstance(given, torch.fx.Node)]
            return sum(part.slope * math.sqrt(value.numel() / part.value.numel()) for part in terms if part.slope)
        if plain in ("mul", "imul", "truediv", "div", "itruediv") and not kwargs and len(moving) == 1:
            return self._multiple(plain, args, first, value)
        if plain in ("cat", "concat") and isinstance(args[0], (tuple, list)):
            along: int = kwargs.get("dim", args[1] if len(args) > 1 else 0)
            given: Any = node.args[0]
            return math.hypot(*(seen[part].slope for part in given)) if along % value.dim() else None
        if plain == "mean" and isinstance(value, Tensor):
            dim: Any = kwargs.get("dim", args[1] if len(args) > 1 else 0)
            axes = {d % first.value.dim() for d in ((dim,) if isinstance(dim, int) else dim)}
            return None if 0 in axes else first.slope * math.sqrt(value.numel() / first.value.numel())
        if plain == "neg":
            return first.slope
        return first.slope if plain in _MOVES and len(moving) == 1 and self._moves(node, first, seen) else None

    @staticmethod
    def _multiple(name: str, args: Any, first: _Seen, value: Any) -> float | None:
        constant = args[1] if args[0] is first.value else args[0]
        if not isinstance(constant, (int, float, Tensor)) or value.shape != first.value.shape:
            return None
        sizes = torch.as_tensor(constant).double().abs()
        if name in ("mul", "imul"):
            return first.slope * float(sizes.max())
        return first.slope / float(sizes.min()) if args[0] is first.value and float(sizes.min()) > 0 else None

    def _moves(self, node: torch.fx.Node, first: _Seen, seen: dict[torch.fx.Node, _Seen]) -> bool:
        """Whether no number of an image is found twice in what is made of it, nor in that of the other image."""
        if isinstance(first.value, tuple):
            return True
        numbers = torch.arange(first.value.numel(), dtype=torch.float64).view_as(first.value)
        moved = self._call(node, lambda given: numbers if seen[given] is first else seen[given].value)
        for part in moved if isinstance(moved, tuple) else (moved,):
            if part.dim() == 0:
                return False
            owner = part.flatten(1) // (numbers.numel() // 2)
            if len(part) != 2 or len(part.unique()) != part.numel() or owner.unique(dim=1).T.tolist() != [[0.0, 1.0]]:
                return False
        return True

    def _check_alone(self, node: torch.fx.Node, seen: dict[torch.fx.Node, _Seen]) -> None:
        """Refuse to change a value that is used elsewhere, or whose memory another one shares."""
        changed: Any = node.args[0]
        storages = [
            other.value.untyped_storage().data_ptr()
            for key, other in seen.items()
            if key is not changed and isinstance(other.value, Tensor) and any(user not in seen for user in key.users)
        ]
        shared = seen[changed].value.untyped_storage().data_ptr() in storages
        if len(changed.users) != 1 or shared or not seen[changed].is_of_images:
            raise self.refused(node, "it changes a value in place that may be used again")
