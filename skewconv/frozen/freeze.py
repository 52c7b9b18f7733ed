"""freeze: a model for inference, in which everything that depends on the weights alone is computed once."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.checks import check_positive
from skewconv.errors import ArgumentError, ShapeError
from skewconv.frozen.layers import Frozen, FrozenConv, FrozenDense, FrozenSeries, FrozenSpectral
from skewconv.frozen.operators import as_real_products, dense_operator, proven, spectral_operator
from skewconv.nn import BCOP2d, NormalizedLinear, OrthogonalLinear, lipschitz_upper_bound
from skewconv.nn.soc.skew_conv import SkewConv
from skewconv.ops.engines import spectral
from skewconv.ops.norms import norm_upper_bound
from skewconv.ops.polynomials import Polynomial, non_expansive_polynomial
from skewconv.ops.series import DEFAULT_SERIES

# A matrix larger than this is read from memory more slowly than the convolutions it replaces are computed.
_MATRIX_BYTES = 2**28
# A dense matrix product reaches about half of the speed of a large convolution.
_PRODUCT_COST = 2.0


@dataclass(frozen=True)
class Shapes:
    """The shapes of one input and one output of a layer, without the batch axis."""

    given: tuple[int, ...]
    made: tuple[int, ...]


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
            if isinstance(layer, Frozen):
                layer.seal()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.input_shape:
            raise ShapeError(
                f"this model was frozen for inputs of shape (batch, {', '.join(map(str, self.input_shape))}), got "
                f"{tuple(x.shape)}; freeze the original again for the new size"
            )
        return self.model(x)

    def train(self, mode: bool = True) -> "FrozenModel":
        """Frozen models have no training mode."""
        if mode:
            raise ArgumentError("a frozen model cannot be trained; train the original and freeze it again")
        return super().train(False)

    def lipschitz_upper_bound(self, input_shape: tuple[int, ...]) -> float:
        """Proven for the frozen operators themselves."""
        return lipschitz_upper_bound(self.model, input_shape)


def freeze(model: nn.Module, input_shape: Iterable[int], tol: float = 1e-6) -> FrozenModel:
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
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be an nn.Module, got {type(model).__name__}")
    tol = check_positive(tol, "tol")
    shape = tuple(input_shape)
    shapes = _shapes(model, shape)
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    share = tol / max(1, sum(isinstance(m, SkewConv) for m in model.modules()))
    for name, module in list(frozen.named_modules()):
        rule = next((r for kind, r in _RULES.items() if isinstance(module, kind)), None)
        if rule is None or name not in shapes:
            continue
        with torch.inference_mode(False), torch.no_grad():
            new = rule(module, shapes[name], share)
        if not name:
            return FrozenModel(new.eval(), shape, tol)
        parent, _, child = name.rpartition(".")
        setattr(frozen.get_submodule(parent), child, new.eval())
    return FrozenModel(frozen, shape, tol)


def _shapes(model: nn.Module, input_shape: tuple[int, ...]) -> dict[str, Shapes]:
    """The shapes that each layer meets, from one run on zeros."""
    found: dict[str, Shapes] = {}

    def remember(name: str, given: Tensor, made: Tensor) -> None:
        now = Shapes(tuple(given.shape[1:]), tuple(made.shape[1:]))
        if found.setdefault(name, now) != now:
            raise ShapeError(
                f"layer '{name}' meets inputs of shapes {found[name].given} and {now.given}; it can be frozen for one"
            )

    twin = copy.deepcopy(model).eval()
    for name, module in twin.named_modules():
        if any(isinstance(module, kind) for kind in _RULES):
            module.register_forward_hook(lambda _, given, made, name=name: remember(name, given[0], made))
    tensor = next(iter([*twin.parameters(), *twin.buffers()]), torch.zeros(()))
    with torch.no_grad():
        twin(torch.zeros(1, *input_shape, dtype=tensor.dtype, device=tensor.device))
    return found


def _freeze_skew_conv(layer: SkewConv, shapes: Shapes, tol: float) -> Frozen:
    weight, injective = layer.weight.detach(), layer.gain_bounds()[0] > 0
    common: dict[str, Any] = {"input_shape": shapes.given, "output_shape": shapes.made}
    options: dict[str, Any] = {"geometry": layer.geometry, "stride": layer.stride, "upsamples": layer.transposed}
    double = torch.complex128 if layer.is_complex else torch.float64
    own = FrozenSeries(
        weight=weight.cpu().to(double), polynomial=layer.polynomial(), gain=layer.gain_bounds(), **common, **options
    )
    common["bias"] = layer.bias
    if layer.padding_mode == "circular" and not layer.is_complex:
        rounded, gain = proven(spectral_operator(own), weight.dtype.to_complex(), own.polynomial.gain, tol, injective)
        return _spectral(layer, rounded, own.image_size, gain, common)
    shorter = _shorter(layer, weight, tol)
    entries = math.prod(shapes.given) * math.prod(shapes.made)
    steps = shorter.degree - 0.5 * (layer.read_channels != layer.kept_channels)
    convolutions = steps * math.prod(own.image_size) * weight.numel()
    if entries * weight.element_size() <= _MATRIX_BYTES and _PRODUCT_COST * entries <= convolutions:
        rounded, gain = proven(dense_operator(own), weight.dtype, own.polynomial.gain, tol, injective)
        return FrozenDense(weight=rounded.to(weight.device), gain=gain, **common)
    gain = (shorter.gain[0] if injective else 0.0, shorter.gain[1])
    return FrozenSeries(weight=weight, polynomial=shorter, gain=gain, **common, **options)


def _spectral(
    layer: SkewConv, matrices: Tensor, size: tuple[int, ...], gain: tuple[float, float], common: dict[str, Any]
) -> FrozenSpectral:
    device, dtype = layer.centre.device, matrices.real.dtype
    cpu = torch.device("cpu")
    forward = spectral.new_table("forward", size, None, dtype, cpu)
    inverse = spectral.new_table("inverse", size, None, dtype, cpu)
    # Real and imaginary part of one frequency side by side, so that a frequency's rows are one block.
    order = torch.arange(len(forward)).view(2, -1).T.flatten()
    return FrozenSpectral(
        weight=as_real_products(matrices).to(device),
        forward_table=forward[order].to(device),
        inverse_table=inverse[:, order].contiguous().to(device),
        groups=layer.groups,
        stride=layer.stride,
        upsamples=layer.transposed,
        gain=gain,
        **common,
    )


def _shorter(layer: SkewConv, weight: Tensor, tol: float) -> Polynomial:
    """The shortest polynomial within ``tol`` of the layer's own, from a tight bound of the norm; or the layer's own."""
    own = layer.polynomial()
    if own.truncation_error >= tol:
        return own
    bound = min(norm_upper_bound(weight, method, groups=layer.groups) for method in ("symbol", "fantastic-four"))
    shorter = non_expansive_polynomial(max(bound, 1e-6), tol - own.truncation_error, DEFAULT_SERIES)
    return shorter if shorter.degree < own.degree else own


def _freeze_bcop(layer: BCOP2d, shapes: Shapes, tol: float) -> Frozen:
    return FrozenConv(
        weight=layer.weight,
        stride=(layer.stride,) * 2 if isinstance(layer.stride, int) else layer.stride,
        input_shape=shapes.given,
        output_shape=shapes.made,
        gain=layer.gain_bounds(),
        bias=layer.bias,
    )


def _freeze_linear(layer: OrthogonalLinear | NormalizedLinear, shapes: Shapes, tol: float) -> nn.Module:
    new = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    weight = layer.weight.detach().clone(memory_format=torch.contiguous_format)
    new.weight = nn.Parameter(weight, requires_grad=False)
    if layer.bias is not None:
        new.bias = nn.Parameter(layer.bias.detach().clone(), requires_grad=False)
    return new


_RULES: dict[type[nn.Module], Callable[[Any, Shapes, float], nn.Module]] = {
    SkewConv: _freeze_skew_conv,
    BCOP2d: _freeze_bcop,
    OrthogonalLinear: _freeze_linear,
    NormalizedLinear: _freeze_linear,
}
