"""freeze: a model for inference, in which everything that depends on the weights alone is computed once."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from skewconv.checks import check_positive
from skewconv.errors import ArgumentError, ShapeError, UnboundedModuleError
from skewconv.nn import lipschitz_upper_bound
from skewconv.nn.frozen_layers import FrozenChoice, FrozenLayer
from skewconv.nn.memory_format import following, inside_a_network
from skewconv.nn.module_tools import MetShapes, for_inference, recording_shapes, replace_module, unchanged, zeros_for
from skewconv.nn.protocol import Links, OverriddenError, carried, frozen_form, has_frozen_form, reason_to_doubt
from skewconv.nn.wrappers import inner_model
from skewconv.ops.torch_modes import tracing


class FrozenModel(nn.Module):
    """A frozen model: call it as the original; it refuses inputs of another size.

    Args:
        model: the frozen modules.
        input_shape: the shape of one input, without the batch axis.
        tol: what was allowed between its outputs and the original's.
    """

    def __init__(self, model: nn.Module, input_shape: tuple[int, ...], tol: float) -> None:
        super().__init__()
        self.model, self.input_shape, self.tol = model, tuple(input_shape), tol
        for layer in model.modules():
            if isinstance(layer, FrozenLayer):
                layer.seal()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.input_shape:
            raise ShapeError(
                f"this model was frozen for inputs of shape (batch, {', '.join(map(str, self.input_shape))}), got "
                f"{tuple(x.shape)}; freeze the original again for the new size"
            )
        if tracing():
            return self.model(x)
        with inside_a_network():
            y = self.model(x)
        return following(y, x)

    def train(self, mode: bool = True) -> "FrozenModel":
        """Frozen models have no training mode."""
        if mode:
            raise ArgumentError("a frozen model cannot be trained; train the original and freeze it again")
        return super().train(False)

    def lipschitz_upper_bound(self, input_shape: tuple[int, ...]) -> float:
        """Proven for the frozen operators themselves."""
        return lipschitz_upper_bound(self.model, input_shape)

    def links(self) -> Links:
        """The frozen modules: a certificate of this model is of the function that it stores."""
        return [("model", self.model)]


Offers: TypeAlias = Mapping[str, Sequence[FrozenChoice]]
#: (the forms offered, by the name of the layer; how many numbers all the other layers store) -> the forms chosen
Chooser: TypeAlias = Callable[[Offers, int], Mapping[str, FrozenChoice]]


def freeze(
    model: nn.Module, input_shape: Iterable[int], tol: float = 1e-6, *, choose: Chooser | None = None
) -> FrozenModel:
    """A plain, fast inference model with the same outputs.

    >>> import torch
    >>> from skewconv.models import LipConvnet
    >>> model = LipConvnet(5, in_channels=1, input_size=8, width=4).eval()
    >>> frozen = freeze(model, (1, 8, 8))
    >>> x = torch.rand(2, 1, 8, 8)
    >>> torch.testing.assert_close(frozen(x), model(x), atol=1e-5, rtol=0)

    Convolutions with circular padding become one product per frequency, small ones with zero padding one matrix, large
    ones keep their convolutions, with a normalised filter and the fewest steps that a tight bound of its norm allows.
    Each new layer states a gain that is proven for what it stores.

    Args:
        model: any module; layers of this library are frozen, others are copied.
        input_shape: the shape of one input, without the batch axis. The frozen model takes this size only.
        tol: the largest difference of the outputs from the original's in exact arithmetic, relative to the activations'
            norms; what rounding adds in the model's precision comes on top.
        choose: decides between forms of layers that can take several, by size for example
            (see :func:`skewconv.export.within_budget`); by default each takes the fastest.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be an nn.Module, got {type(model).__name__}")
    tol, shape = check_positive(tol, "tol"), tuple(input_shape)
    frozen = for_inference(copy.deepcopy(unchanged(inner_model(model))))
    layers = {name: module for name, module in frozen.named_modules() if _changes(name, module)}
    share = tol / max(1, sum(getattr(layer, "freezes_to_tolerance", False) for layer in layers.values()))
    shapes = _shapes_met(frozen, layers, shape)
    wanted = {} if choose is None else _chosen(layers, shapes, share, choose)
    forms = {layers[name]: _form(layers[name], met, share, wanted.get(name)) for name, met in shapes.items()}
    # Most forms use a tenth of their share at the most: the rest is spent by the others, most of it by the dearest.
    spending = {name: met for name, met in shapes.items() if getattr(forms[layers[name]], "spends_tolerance", False)}
    for name, part in _shares(layers, spending, 0.9 * tol).items():
        forms[layers[name]] = _form(layers[name], spending[name], part, wanted.get(name))
    # A layer that is held twice has two names.
    for name, module in list(frozen.named_modules(remove_duplicate=False)):
        if module in forms:
            frozen = replace_module(frozen, name, forms[module])
    return FrozenModel(frozen, shape, tol)


def _numbers(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in (*module.parameters(), *module.buffers()))


def _changes(name: str, module: nn.Module) -> bool:
    """Whether a module becomes something else; the others are copied, and a wrong heir is refused by name."""
    try:
        changes = has_frozen_form(module)
    except OverriddenError as error:
        raise ArgumentError(f"'{name}' cannot be frozen: {error}") from None
    if changes and (doubt := reason_to_doubt(module)) is not None:
        raise UnboundedModuleError(f"'{name}' ({type(module).__name__}) cannot be frozen: {doubt}")
    return changes


def _form(layer: nn.Module, met: MetShapes, tol: float, form: str | None = None) -> nn.Module:
    with torch.inference_mode(False), torch.no_grad():
        if form is None:
            return frozen_form(layer, met.given, met.made, tol).eval()
        choices = _choices(layer, met, tol)
        return next(choice for choice in choices if choice.form == form).build().eval()


def _choices(layer: nn.Module, met: MetShapes, tol: float) -> Sequence[FrozenChoice]:
    """The forms that a layer can take; none where it has only one."""
    offer = carried(layer, "frozen_choices")
    return [] if offer is None else list(offer(met.given, met.made, tol))


def _chosen(layers: dict[str, nn.Module], shapes: dict[str, MetShapes], tol: float, choose: Chooser) -> dict[str, str]:
    """The form that each layer shall take, where it can take several."""
    with torch.inference_mode(False), torch.no_grad():
        offers = {name: _choices(layers[name], met, tol) for name, met in shapes.items()}
    fixed = sum(_numbers(_form(layers[name], shapes[name], tol)) for name, offer in offers.items() if not offer)
    return {name: choice.form for name, choice in choose({k: v for k, v in offers.items() if v}, fixed).items()}


def _shares(layers: dict[str, nn.Module], shapes: dict[str, MetShapes], tol: float) -> dict[str, float]:
    """Parts of the tolerance: half of it to each layer alike, half in proportion to what one product costs there.

    Where each further product divides a layer's error by one factor, parts in proportion to the costs of a product make
    the whole cheapest (the derivative of its error by its products is its error, but for that factor).
    """
    costs = {name: _cost_of_a_product(layers[name], met) for name, met in shapes.items()}
    whole = sum(costs.values())
    return {name: tol / 2 * (1 / len(costs) + cost / whole) for name, cost in costs.items()}


def _cost_of_a_product(layer: nn.Module, met: MetShapes) -> int:
    """Multiply-adds of a convolution, up to a factor that all have in common."""
    pixels = min(math.prod(met.given[1:]), math.prod(met.made[1:]))
    return pixels * sum(parameter.numel() for parameter in layer.parameters())


def _shapes_met(model: nn.Module, layers: dict[str, nn.Module], input_shape: tuple[int, ...]) -> dict[str, MetShapes]:
    """The shapes that each layer meets, from one run on zeros."""
    with recording_shapes(layers) as met, torch.no_grad():
        model(zeros_for(model, input_shape))
    for name, calls in met.items():
        other = next((call for call in calls if call != calls[0]), None)
        if other is not None:
            raise ShapeError(
                f"layer '{name}' meets inputs of shapes {calls[0].given} and {other.given}; it can be frozen for one"
            )
    return {name: calls[0] for name, calls in met.items()}
