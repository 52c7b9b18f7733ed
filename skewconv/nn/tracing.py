"""The graph of a forward by torch.fx, cut into a chain of layers where one value is all that later ones depend on."""

import operator
from typing import Any

import torch.fx
from torch import nn

from skewconv.errors import UnboundedModuleError
from skewconv.nn.bounds import is_primitive
from skewconv.nn.graph import GraphPart
from skewconv.nn.tables import tampering


def is_users_own(module: nn.Module) -> bool:
    """True for user modules: no layer of torch, no bound registered for the class or a base, and no ``lower``."""
    kinds = [kind for kind in type(module).__mro__ if kind not in (nn.Module, object)]
    torchs = any(kind.__module__.startswith("torch.") for kind in kinds)
    return not (torchs or is_primitive(module) or hasattr(module, "lower"))


def graph_parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The parts that a module's forward in eval mode runs one after the other, named; or an UnboundedModuleError."""
    graph = _traced_graph(module)
    # The input, and every node that depends on it, in order.
    moving: list[torch.fx.Node] = [node for node in graph.nodes if node.op == "placeholder"]
    if len(moving) != 1:
        raise UnboundedModuleError(f"its forward takes {len(moving)} inputs, and one is needed")
    for node in graph.nodes:
        if node.op != "output" and any(given in moving for given in node.all_input_nodes):
            moving.append(node)
    target = next((node for node in moving if graph.output_node().args[0] is node), None)
    if target is None:
        raise UnboundedModuleError("its forward returns something else than one tensor that depends on the input")
    cuts = _cuts(moving, target)
    parts: list[tuple[str, nn.Module]] = []
    source, between = moving[0], []
    for node in moving[1:]:
        between.append(node)
        # What comes after the result may still change it in place.
        if node not in cuts or (node is target and node is not moving[-1]):
            continue
        if between == [node] and node.op == "call_module" and node.args == (source,) and not node.kwargs:
            parts.append((str(node.target), module.get_submodule(str(node.target))))
        else:
            parts.append((node.name, GraphPart(module, source, tuple(between), node)))
        source, between = node, []
    if between:
        parts.append((target.name, GraphPart(module, source, tuple(between), target)))
    return parts or [("identity", nn.Identity())]


def _traced_graph(module: nn.Module) -> torch.fx.Graph:
    """The graph of the forward, which stops at layers of which something is known."""

    class Tracer(torch.fx.Tracer):
        proxy_buffer_attributes = True

        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return type(m) is not nn.Sequential and not is_users_own(m)

        def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
            if (reason := tampering(m)) is not None:
                raise UnboundedModuleError(f"'{self.path_of_module(m)}' ({type(m).__name__}): {reason}; remove it")
            return super().call_module(m, forward, args, kwargs)

    if (reason := tampering(module)) is not None:
        raise UnboundedModuleError(f"{type(module).__name__}: {reason}; remove it")
    if type(module).__call__ is not nn.Module.__call__:
        raise UnboundedModuleError("its class overrides __call__, of which the graph of its forward knows nothing")
    try:
        graph = Tracer().trace(module)
    except UnboundedModuleError:
        raise
    except Exception as error:  # what tracing raises is not documented
        raise UnboundedModuleError(f"its forward cannot be traced ({error})") from error
    for node in graph.nodes:
        if node.op == "get_attr" and str(node.target).startswith("_tensor_constant"):
            raise UnboundedModuleError(
                "its forward makes a tensor of its own, which may be another one in every call; make it a buffer"
            )
        constant = all(given.op == "get_attr" for given in node.all_input_nodes)
        name = str(getattr(node.target, "__name__", node.target))
        writes = node.op in ("call_function", "call_method") and name.endswith("_") and not name.endswith("__")
        if constant and writes:
            raise UnboundedModuleError(f"the operation '{node.name}' changes a parameter or a buffer in place")
    return graph


def _is_one_tensor(node: torch.fx.Node) -> bool:
    """Whether a value is one tensor for certain: a layer made it, or takes it, or it is a sum."""
    taken = any(user.op == "call_module" and user.args == (node,) for user in node.users)
    return taken or node.op == "call_module" or node.target in (operator.add, operator.sub)


def _cuts(moving: list[torch.fx.Node], target: torch.fx.Node) -> set[torch.fx.Node]:
    """The result, and the values before it that no other value passes by.

    For x -> a -> b -> c with an edge from a to c, cuts are a and c: while b is there, a is still needed.
    """
    place = {node: position for position, node in enumerate(moving)}
    last = {node: max((place[user] for user in node.users if user in place), default=-1) for node in moving}
    cuts, needed_until = {target}, 0
    for position, node in enumerate(moving[: place[target]]):
        if position and needed_until <= position and _is_one_tensor(node):
            cuts.add(node)
        needed_until = max(needed_until, last[node])
    return cuts
