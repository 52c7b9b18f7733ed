"""Lowering: a model whose trained layers have become primitives, each for the shape that it meets.

``lower(input_shape, tol=None)`` of a layer makes modules of primitives and torch.nn's own: the very map of eval mode,
or a faster one within ``tol`` of it, relative to the norm of the input. A network of known parts gives these in an
``nn.Sequential`` or a sum; a user's module without one is traced by torch.fx, and its
graph is cut into a chain of layers where one value is all that later ones depend on.
"""

import copy
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.fx
from torch import nn

from skewconv.errors import DtypeError, NotFiniteError, ShapeError, UnboundedModuleError
from skewconv.nn.bounds import Shape, chain_bound, is_primitive, run_zeros
from skewconv.nn.graph import GraphPart
from skewconv.nn.module_tools import (
    MetShapes,
    UnsupportedLayerError,
    evaluating,
    first_tensor,
    float64_copy,
    named,
    owner_of,
    recording_shapes,
    tampering,
    unwrapped,
    with_plain_weights,
)
from skewconv.nn.primitives import Choice, Form, SkewExponential

NamedLayers: TypeAlias = list[tuple[str, nn.Module]]
Offers: TypeAlias = Mapping[str, Sequence[Choice]]
#: (the forms offered, by the name of the layer; how many numbers all the other layers store) -> the forms chosen
Chooser: TypeAlias = Callable[[Offers, int], Mapping[str, Choice]]


def lower(
    model: nn.Module, input_shape: Iterable[int], tol: float | None = None, *, choose: Chooser | None = None
) -> nn.Module:
    """The model with primitives in the place of its layers; it shares the tensors of what needs no lowering.

    >>> from skewconv.nn import OrthogonalLinear
    >>> lower(OrthogonalLinear(4, 2).eval(), (4,))
    Linear(in_features=4, out_features=2, bias=True)

    Args:
        model: in eval mode. With ``tol=None`` a user's own modules must be in float64, in which they are traced.
        input_shape: of one input, without the batch axis.
        tol: the largest difference of the outputs in exact arithmetic, relative to the activations' norms; None for the
            very map.
        choose: decides between the forms of layers that have several; by default each takes its fastest.

    Raises:
        UnsupportedLayerError: a layer was tampered with, or, with ``tol=None``, a user's own module cannot be traced.
    """
    lowering = _Lowering(with_plain_weights(unwrapped(model)), tuple(input_shape), tol, choose)
    return lowering.lowered(lowering.model)


def lipschitz_upper_bound(model: nn.Module, input_shape: Iterable[int]) -> float:
    """L with ||f(x) - f(y)|| <= L ||x - y|| for all x, y: proven, for the map f that the model computes in eval mode.

    >>> lipschitz_upper_bound(nn.Sequential(nn.Flatten(), nn.ReLU()), (3, 8, 8))
    1.0

    Args:
        model: made of layers that have a ``lower`` or a registered bound, or one of your own whose forward joins such
            modules by sums, views and the like. Its weights and training flags are left as they are.
        input_shape: the shape of one input, without the batch axis.

    The bound is of the map in exact arithmetic with the weights as stored; the rounding of an evaluation is not in it.
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    shape = tuple(input_shape)
    if any(type(n) is not int or n < 1 for n in shape):
        raise ShapeError(f"input_shape must hold integers >= 1, without the batch axis, got {shape}")
    inner = unwrapped(model)
    if any(is_users_own(module) for module in inner.modules()):
        inner = float64_copy(inner)
    with evaluating(inner), torch.no_grad():
        bound = chain_bound(chain(lower(inner, shape)), shape)
    if not (math.isfinite(bound) and bound >= 0):
        raise NotFiniteError(f"the Lipschitz bound of {type(model).__name__} is {bound}; are its weights finite?")
    return bound


def chain(module: nn.Module, path: str = "") -> NamedLayers:
    """The primitives that a lowered model runs one after the other, named."""
    if type(module) is not nn.Sequential or tampering(module) is not None or not len(module):
        return [(path, module)]
    prefix, paths = f"{path}." if path else "", vars(module).get("_paths", {})
    # A module that is held twice runs twice.
    return [each for n, child in module._modules.items() for each in chain(child, prefix + paths.get(n, n))]


def sequence(**parts: nn.Module) -> nn.Sequential:
    chained = nn.Sequential()
    for name, part in parts.items():
        chained.add_module(name, part)
    return chained


class _Lowering:
    def __init__(self, model: nn.Module, shape: Shape, tol: float | None, choose: Chooser | None) -> None:
        self.model, self.tol = model, tol
        self.names = {module: name for name, module in reversed([*model.named_modules()])}
        self.done: dict[nn.Module, nn.Module] = {}
        # The parts of a user's own module that is traced as a whole.
        self.inside: set[nn.Module] = set()
        self.layers: dict[str, nn.Module] = {}
        owns: dict[str, nn.Module] = {}
        for name, module in model.named_modules():
            if is_users_own(module):
                owns[name] = module
            elif hasattr(module, "lower"):
                with named(name):
                    owner_of(module, lambda kind: "lower" in vars(kind))
                self.layers[name] = module
        self.shapes = self._shapes_met(self.layers | owns, shape) if self.layers or owns else {}
        self.shares = self._shares(choose)

    def lowered(self, module: nn.Module) -> nn.Module:
        if module not in self.done:
            self.done[module] = self._anew(module)
        return self.done[module]

    def _anew(self, module: nn.Module) -> nn.Module:
        inner, name = unwrapped(module), self.names.get(module)
        if inner is not module:
            return self.lowered(inner)
        if name is None or name not in self.shapes:
            return self._with_children(module)
        if name in self.layers:
            made = self._made(name)
            return self.lowered(made) if made in self.names else self._with_children(made)
        is_part = self.tol is not None or module in self.inside
        return self._with_children(module) if is_part else self._traced(module, name)

    def _with_children(self, module: nn.Module) -> nn.Module:
        """The module with its children lowered; a copy where that changes something."""
        children = {name: child if child is None else self.lowered(child) for name, child in module._modules.items()}
        if all(child is module._modules[name] for name, child in children.items()):
            return module
        new = copy.copy(module)
        new._modules = dict(children)
        return new

    def _traced(self, module: nn.Module, name: str) -> nn.Module:
        self.inside |= {*module.modules()}
        whole, shape = self._with_children(module), self.shapes[name].given
        try:
            parts = graph_parts(whole)
            _refuse_another_function(whole, parts, shape)
        except UnboundedModuleError as error:
            reason = f"its graph gives no bound: {error}"
            raise UnsupportedLayerError(module, reason, name) from error
        # A path has dots, which a module's name may not have; and a layer may run twice.
        traced = nn.Sequential(*(layer for _, layer in parts))
        traced.training = False
        vars(traced)["_paths"] = {str(place): path for place, (path, _) in enumerate(parts)}
        return traced

    def _made(self, name: str, tol: float | None = None, form: Form | None = None) -> nn.Module:
        layer, shape = self.layers[name], self.shapes[name].given
        tol, form = self.shares.get(name, (self.tol, None)) if tol is None else (tol, form)
        with torch.inference_mode(False), torch.no_grad():
            if form is None:
                made = layer.lower(shape, tol)  # type: ignore[operator]
            else:
                made = next(choice for choice in layer.choices(shape, tol) if choice.form == form).build()  # type: ignore[operator]
        for module in made.modules():
            if module not in self.names:
                module.training = False
                if self.tol is None:
                    # In another precision the layer may have other numbers than these.
                    vars(module).setdefault("_lowered_from", type(layer).__name__)
        return made

    def _shapes_met(self, modules: dict[str, nn.Module], shape: Shape) -> dict[str, MetShapes]:
        with recording_shapes(modules) as met:
            run_zeros(self.model, shape)
        for name, calls in met.items():
            other = next((call for call in calls if call.given != calls[0].given), None)
            if other is not None and name in self.layers:
                raise ShapeError(
                    f"layer '{name}' meets inputs of shapes {calls[0].given} and {other.given}; it can be lowered for "
                    "one"
                )
        return {name: calls[0] for name, calls in met.items() if calls}

    def _shares(self, choose: Chooser | None) -> dict[str, tuple[float | None, Form | None]]:
        """The part of the tolerance that each layer may spend, and its form."""
        if self.tol is None:
            return {}
        met = {name: layer for name, layer in self.layers.items() if name in self.shapes}
        flexible = [name for name, layer in met.items() if hasattr(layer, "choices")]
        share = self.tol / max(1, sum(hasattr(layer, "choices") for layer in self.layers.values()))
        forms: dict[str, Form | None] = dict.fromkeys(met, None)
        if choose is not None:
            with torch.inference_mode(False), torch.no_grad():
                offers = {name: [*met[name].choices(self.shapes[name].given, share)] for name in flexible}  # type: ignore[operator]
            others = [self._made(name, share) for name in met if name not in flexible]
            stored = [made.state_dict().values() for made in others if not {*made.modules()} & self.names.keys()]
            fixed = sum(tensor.numel() for tensors in stored for tensor in tensors)
            forms |= {name: choice.form for name, choice in choose(offers, fixed).items()}
        shares: dict[str, tuple[float | None, Form | None]] = {name: (share, forms[name]) for name in met}
        # Most forms use a tenth of their share at the most: the rest is spent by chains, most of it by the dearest.
        built = {name: self._made(name, share, forms[name]) for name in flexible}
        spending = [name for name, made in built.items() if isinstance(made, SkewExponential)]
        # Half of it to each alike, half in proportion to what a product costs there: where each further product divides
        # a layer's error by one factor, that makes the whole cheapest.
        costs = {}
        for name in spending:
            pixels = min(math.prod(shape[1:]) for shape in self.shapes[name])
            costs[name] = pixels * sum(parameter.numel() for parameter in met[name].parameters())
        for name, cost in costs.items():
            shares[name] = (0.9 * self.tol / 2 * (1 / len(costs) + cost / sum(costs.values())), forms[name])
        for name in flexible:
            if name not in spending:
                self.done[met[name]] = built[name]
        return shares


def _refuse_another_function(model: nn.Module, parts: NamedLayers, shape: Shape) -> None:
    """Compare a module on batches with its parts one after the other, image by image."""
    generator, device = torch.Generator().manual_seed(0), first_tensor(model).device
    # Several batch sizes: images that change places in batches of one size stay where they are in those of another.
    for images, scale in ((3, 0.1), (5, 1.0), (7, 10.0)):
        x = scale * torch.randn(images, *shape, generator=generator, dtype=torch.float64).to(device)
        with torch.no_grad(), torch.random.fork_rng([]):
            whole = model(x.clone())
            alone = torch.cat([nn.Sequential(*(part for _, part in parts))(image[None].clone()) for image in x])
        size = 1 + float(torch.nan_to_num(whole).abs().max()) if whole.numel() else 1.0
        # Two evaluations in float64 agree far better than this, and different functions hardly ever so well.
        if whole.shape != alone.shape or not torch.allclose(whole, alone, 0.0, 1e-9 * size, equal_nan=True):
            raise UnboundedModuleError(
                "its graph computes something else on a batch, as where images are mixed, numbers are drawn, or a "
                "value is changed in place and used again"
            )


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
