"""Float64 programs of primitives: what a certificate runs, with proven bounds of its rounding error, one rule a type.

A sum of n products computed in any order errs by at most gamma_n sum |w| |x| (Higham, Accuracy and Stability of
Numerical Algorithms, Lemma 3.1), so a linear layer errs by gamma_n || |W| || ||x||.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import singledispatch
from typing import Any, TypeVar

import torch
import torch.fx
from torch import Tensor, nn

from skewconv.certify.float64_products import Float64Exponential, Float64Frequencies, float64_convolution
from skewconv.nn import GroupSort, Householder, InvertibleDownsample, MaxMin, Normalize
from skewconv.nn.bounds import IDENTITY, LARGEST, UNDERFLOW, ZERO, AffineBound, Bounds, Shape, axes_of, bound_of
from skewconv.nn.gains import gain_of_matrices, gain_of_tables
from skewconv.nn.graph import GraphPart
from skewconv.nn.lowering import NamedLayers, chain
from skewconv.nn.module_tools import UnsupportedLayerError, ask, first_tensor, register
from skewconv.nn.primitives import (
    Convolution,
    Dense,
    Primitive,
    ResidualStep,
    ResidualSum,
    SkewExponential,
    Spectral,
    fitted,
)
from skewconv.ops.convolution import adjoint_filter
from skewconv.ops.permutations import invertible_downsample
from skewconv.rigor import (
    ERROR_UP,
    MILLIONS_UP,
    UNIT_ROUNDOFF,
    absolute_norm_upper_bound,
    factor_up,
    gamma,
    in_double,
    spectral_norm_upper_bound,
    sqrt_up,
    vector_norm_up,
)

RuleT = TypeVar("RuleT", bound=Callable[..., Any])
_SUM_UP = factor_up(64)
# A kernel of this side is summed by few large products.
_FEW_TAPS = 5
# As many images pay for a matrix for each frequency, if those fit into memory and their powers into float64.
_MANY_IMAGES, _MOST_NUMBERS, _LARGEST_LOG = 32, 2**26, 200.0


@dataclass(frozen=True)
class Float64Program:
    """A map f and the float64 program that computes it.

    ``run`` maps (batch, *input) to (batch, *output), and ``bounds`` are proven of f and of the program. Where
    f(x) = A x + b is known as a matrix (outputs, inputs), a model that ends in it is certified by the differences of
    the rows of A.
    """

    run: Callable[[Tensor], Tensor]
    shape: Shape
    bounds: Bounds
    matrix: Tensor | None = None

    def then(self, other: "Float64Program") -> "Float64Program":
        return Float64Program(lambda x: other.run(self.run(x)), other.shape, self.bounds.then(other.bounds))


@singledispatch
def float64_program(module: nn.Module, shape: Shape) -> Float64Program:
    """The program of a primitive in eval mode and float64 for inputs of this shape: the table of rules."""
    raise UnsupportedLayerError(module, "its rounding error is not known, so no certificate can be given")


def program_of(module: nn.Module, shape: Shape, path: str = "") -> Float64Program:
    """The program of a primitive by the rule of its type, or a refusal by name."""
    program: Float64Program = ask(float64_program, module, tuple(shape), path=path)
    return program


def chain_program(links: NamedLayers, shape: Shape) -> Float64Program:
    total = Float64Program(lambda x: x, shape, IDENTITY)
    for name, module in links:
        total = total.then(program_of(module, total.shape, name))
    return total


def register_rounding(*kinds: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Decorate a rule (module, input_shape) -> Float64Program for modules of these types, which have a bound.

    >>> class Reversed(nn.Module):
    ...     def forward(self, x):
    ...         return x.flip(-1)
    >>> register_rounding(Reversed)(exact_program).__name__
    'exact_program'
    """
    return register(float64_program, kinds)


def module_program(
    module: nn.Module,
    shape: Shape,
    error: AffineBound,
    *,
    run: Callable[[Tensor], Tensor] | None = None,
    lipschitz: float | None = None,
    matrix: Tensor | None = None,
    inner: AffineBound = ZERO,
    sums: bool = False,
) -> Float64Program:
    """A program of a module whose output shape and norm, ||f(x)|| <= Lip ||x|| + ||f(0)||, are found by running zeros.

    Args:
        module: in float64.
        shape: of one input.
        error: ||computed - f(x)||, underflow left aside.
        run: (batch, *input) -> (batch, *output), default: its forward.
        lipschitz: default: the bound that is known of it.
        matrix: see :class:`Float64Program`.
        inner: a bound of what it computes on the way, where that may be far larger than input and output.
        sums: it ends in an addition, which rounds once more than the error says.
    """
    run, lipschitz = run or module, bound_of(module, shape) if lipschitz is None else lipschitz
    with torch.no_grad():
        origin = run(torch.zeros(1, *shape, dtype=torch.float64, device=first_tensor(module).device))
    size = float(vector_norm_up(origin.flatten()))
    for again in (sums, False):
        whole = AffineBound(error.slope, error.constant + UNDERFLOW.constant)
        norm = AffineBound(lipschitz, (size + whole.constant) * _SUM_UP)
        if not again:
            break
        error = error.plus(norm.plus(whole).times(UNIT_ROUNDOFF))
    return Float64Program(
        run, tuple(origin.shape[1:]), Bounds(lipschitz, norm, whole, inner.stays_below(LARGEST)), matrix
    )


#: layers that round nothing
EXACT: tuple[type[nn.Module], ...] = (
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
    *(nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(MaxMin, GroupSort, InvertibleDownsample),
)


@register_rounding(*EXACT)
def exact_program(module: nn.Module, input_shape: Shape) -> Float64Program:
    """The forward of a module that rounds nothing: it sorts, permutes, cuts, or takes maxima."""
    return module_program(module, input_shape, ZERO)


@register_rounding(Householder)
def _householder(module: Householder, shape: Shape) -> Float64Program:
    """32 u ||z|| a fold.

    A fold takes t = 2 min(0, a s - b c) and (a - t s, b + t c). With sines and cosines right to 2 u, t errs by
    2 gamma_6 ||z|| and is at most 2 ||z||: 12 u + 8 u + 2 u and the final roundings stay under 32 u ||z||.
    """
    return module_program(module, shape, AffineBound(32 * UNIT_ROUNDOFF * len(module.theta), 0.0))


@register_rounding(Normalize)
def _normalize(module: Normalize, shape: Shape) -> Float64Program:
    """A difference and a quotient, each right to u: 2 u + u^2 of |(x - mean) / std| at most."""
    plain = module_program(module, shape, ZERO)
    return module_program(module, shape, plain.bounds.norm.times(3 * UNIT_ROUNDOFF))


def product_error(weight: Tensor, norm: float, bias: Tensor | None, pixels: int) -> AffineBound:
    """gamma_n (|| |W| || ||x|| + ||bias||) for rows of weights whose sums make each pixel; ``norm`` is || |W| ||."""
    g = gamma(weight[0].numel() + 2)
    return AffineBound(norm, spread_norm_up(bias, len(weight) * pixels)).times(g).times(MILLIONS_UP)


def spread_norm_up(bias: Tensor | None, sums: int) -> float:
    """The norm of a bias that is repeated until each of these sums has an entry."""
    return 0.0 if bias is None else float(vector_norm_up(bias.flatten())) * math.sqrt(sums / bias.numel()) * MILLIONS_UP


@register_rounding(nn.Linear)
def _linear(module: nn.Linear, shape: Shape) -> Float64Program:
    """One matrix product on the last axis, for the matrix as it is."""
    weight, bias = module.weight.detach(), None if module.bias is None else module.bias.detach()
    if bias is not None and bias.shape != weight.shape[:1]:
        raise UnsupportedLayerError(module, f"its bias has the shape {tuple(bias.shape)} for {len(weight)} outputs")
    error = product_error(weight, absolute_norm_upper_bound(weight), bias, torch.Size(shape[:-1]).numel())
    return module_program(module, shape, error, lipschitz=spectral_norm_upper_bound(weight), matrix=weight)


@register_rounding(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv(module: nn.Conv2d, shape: Shape) -> Float64Program:
    plain = module_program(module, shape, ZERO)
    norm, pixels = absolute_norm_upper_bound(module.weight, module.groups), torch.Size(plain.shape[1:]).numel()
    return module_program(module, shape, product_error(module.weight.detach(), norm, module.bias, pixels))


@register_rounding(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(module: nn.BatchNorm2d, shape: Shape) -> Float64Program:
    """A few operations an entry, whose sizes are those of the input and of the shift."""
    bound = bound_of(module, shape)
    mean = torch.zeros(()) if module.running_mean is None else module.running_mean
    shift = AffineBound(float(vector_norm_up(mean.flatten())), 0.0).times(bound).slope
    if module.bias is not None:
        shift += float(vector_norm_up(module.bias))
    root = torch.Size(shape[1:]).numel() ** 0.5
    error = AffineBound(bound, shift * root).times(gamma(10)).times(ERROR_UP)
    # Where the deviation is divided by first, and the weight makes up for it.
    assert module.running_var is not None
    steepest = 2 / math.sqrt(max(float(in_double(module.running_var).min()) + module.eps, math.ulp(0.0)))
    inner = AffineBound(1.0, float(vector_norm_up(mean.flatten())) * root).times(max(1.0, steepest))
    return module_program(module, shape, error, inner=inner)


@register_rounding(
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
def _avg_pool(module: nn.Module, shape: Shape) -> Float64Program:
    """The weights are not negative, so || |A| || = ||A||; no window is larger than the image and its padding."""
    # Images may come without channels: a batch of them is then read as one image with as many.
    window = math.prod(shape[-axes_of(module) :]) * 4
    return module_program(module, shape, AffineBound(gamma(window + 4) * bound_of(module, shape), 0.0).times(ERROR_UP))


def _primitive_program(
    module: Primitive,
    shape: Shape,
    error: AffineBound,
    maps: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    **options: Any,
) -> Float64Program:
    """The program of a primitive, some of its methods replaced by these, that makes what it states.

    A gain may be proven for those shapes alone.
    """
    if any(tensor.is_complex() for tensor in module.buffers()):
        made = vars(module).get("_lowered_from", type(module).__name__)
        raise UnsupportedLayerError(module, f"{made}: the rounding error of complex layers is not known")
    running = copy.copy(module)
    vars(running).update(maps or {})
    program = module_program(module, shape, error, run=running.map_batch, **options)
    if program.shape != module.output_shape:
        reason = f"it states outputs of shape {module.output_shape}, and makes {program.shape}"
        raise UnsupportedLayerError(module, reason)
    return program


@register_rounding(Dense)
def _dense(module: Dense, shape: Shape) -> Float64Program:
    error = product_error(module.weight, absolute_norm_upper_bound(module.weight), module.bias, 1)
    return _primitive_program(module, shape, error)


@register_rounding(Convolution)
def _convolution(module: Convolution, shape: Shape) -> Float64Program:
    """Small kernels by few large matrix products."""
    weight, pixels = module.weight, math.prod(module.output_shape[1:])
    error = product_error(weight, absolute_norm_upper_bound(weight), module.bias, pixels)
    if max(module.geometry.kernel) > _FEW_TAPS:
        return _primitive_program(module, shape, error)
    convolution = float64_convolution(weight, module.padding_mode)
    linear = {"linear": lambda x: convolution(invertible_downsample(x, module.stride))}
    return _primitive_program(module, shape, error, linear)


@register_rounding(Spectral)
def _spectral(module: Spectral, shape: Shape) -> Float64Program:
    """Five products: each one's error is stretched by what comes before and after it."""
    weights = [weight for weight in (module.real_weight, module.weight) if len(weight)]
    matrices = max(gain_of_matrices(weight)[1] for weight in weights)
    table = gain_of_tables(module.tables)[1]
    sizes = max(absolute_norm_upper_bound(block) for weight in weights for block in weight)
    # A transform is two products, along rows and along columns.
    tables = [each for each in module.tables if len(each)]
    gain, *gains = (gain_of_matrices(each)[1] for each in tables)
    share, *shares = (gamma(len(each) + 2) * absolute_norm_upper_bound(each) for each in tables)
    turn = share * max(gains) + gain * max(shares)
    slope = 2 * turn * matrices * table
    slope += gamma(module.weight.shape[1] + 2) * sizes * table**2
    error = AffineBound(slope * ERROR_UP, 0.0)
    if module.bias is not None:
        # Adding the bias rounds once more, by a share of the sum.
        shift = spread_norm_up(module.bias, math.prod(module.output_shape))
        error = error.plus(AffineBound(matrices * table**2 * ERROR_UP, shift).times(2 * UNIT_ROUNDOFF))
    return _primitive_program(module, shape, error)


@register_rounding(SkewExponential)
def _skew_exponential(module: SkewExponential, shape: Shape) -> Float64Program:
    """The recurrence, or its adjoint, of each group, and the channels kept; or frequencies, for many images."""
    polynomial, geometry = module.polynomial, module.geometry.on_image(module.image_size)
    weight, groups = geometry.within_reach(module.weight.detach()), geometry.groups
    sign = -1.0 if module.upsamples else 1.0
    outputs = (module.read_channels if module.upsamples else module.kept_channels) // groups
    parts = [
        Float64Exponential(part.contiguous(), polynomial, geometry, outputs, sign) for part in weight.chunk(groups)
    ]
    # A complex filter is refused before its rounding is asked for.
    error = 0.0 if weight.is_complex() else max(part.rounding_error() for part in parts)
    frequencies = Float64Frequencies(module) if _has_short_frequencies(module) else None
    if frequencies is not None:
        error = max(error, frequencies.rounding_error)

    def between(x: Tensor) -> Tensor:
        if frequencies is not None and len(x) >= _MANY_IMAGES:
            return frequencies(x)
        return torch.cat([f(part) for f, part in zip(parts, x.chunk(groups, 1), strict=True)], 1)

    # Terms are at most |c_k| ||x||, and the coefficients add up to less than the exponential of the norm; those of
    # the monic basis are no larger than powers of the norm.
    powers = max(1.0, polynomial.norm_bound) ** polynomial.degree if frequencies is not None else 1.0
    inner = AffineBound(4 * max(powers, math.exp(min(polynomial.norm_bound, 700.0))), 0.0)
    return _primitive_program(module, shape, AffineBound(error, 0.0), {"between": between}, inner=inner, sums=True)


def _has_short_frequencies(module: SkewExponential) -> bool:
    """True on a torus where a matrix a frequency and two transforms have fewer products than the recurrence."""
    if module.geometry.padding_mode != "circular" or module.weight.is_complex():
        return False
    polynomial, pixels, channels = module.polynomial, math.prod(module.image_size), module.weight.shape[1]
    transforms, matrices = 2 * pixels, 2 * channels
    fewer = transforms + matrices < polynomial.degree * math.prod(module.geometry.kernel) * channels
    stays_finite = polynomial.degree * math.log(max(1.0, polynomial.norm_bound)) < _LARGEST_LOG
    return fewer and stays_finite and pixels * channels * len(module.weight) <= _MOST_NUMBERS


@register_rounding(ResidualStep)
def _residual_step(module: ResidualStep, shape: Shape) -> Float64Program:
    """keep o (x - 2 W S relu(W^T x + b)) o pad o psi for the tensors as they are.

    With N = || |W| || and B the norm of b on all pixels, h = W^T x + b has norm <= N ||x|| + B and errs by e =
    gamma (N ||x|| + B). Through W S that is at most ||W S^(1/2)|| s^(1/2) e, s the largest of S. The product with 2 S
    and the second convolution err by gamma N 2 s (||h|| + e), the difference by u of its size. The gain is
    max(1, 2 m^2 - 1) with m = ||W S^(1/2)||.
    """
    weight, scale, bias = module.weight.detach(), module.scale.detach(), module.bias
    there, back = (float64_convolution(w, module.padding_mode) for w in (weight, adjoint_filter(weight)))
    shift = None if bias is None else bias.view(-1, 1, 1)
    twice = 2 * (scale.view(-1, 1, 1) if scale.dim() else scale)
    outputs = module.output_shape[0]

    def map_batch(x: Tensor) -> Tensor:
        z = fitted(x, module.stride, weight.shape[1])
        h = there(z) if shift is None else there(z) + shift
        return (z - back(twice * h.clamp_min(0)))[:, :outputs].contiguous()

    lipschitz = bound_of(module, shape)
    norm = 1.0 if lipschitz <= 1 else sqrt_up((Fraction(lipschitz) + 1) / 2)
    absolute, largest = absolute_norm_upper_bound(weight), float(scale.max())
    pixels = torch.Size(shape[1:]).numel() // module.stride**2
    hidden = AffineBound(absolute, spread_norm_up(bias, len(weight) * pixels))
    first = hidden.times(gamma(weight[0].numel() + 4))
    second = hidden.plus(first).times(2 * largest * absolute * gamma(weight[:, 0].numel() + 8))
    error = first.times(2 * norm * math.sqrt(largest)).plus(second)
    inner = hidden.times(max(1.0, 2 * largest * max(1.0, absolute)))
    return _primitive_program(module, shape, error, {"map_batch": map_batch}, inner=inner, sums=True)


@register_rounding(nn.Sequential)
def _sequential(module: nn.Sequential, shape: Shape) -> Float64Program:
    return chain_program(chain(module) if len(module) else [], shape)


@register_rounding(ResidualSum)
def _residual_sum(module: ResidualSum, shape: Shape) -> Float64Program:
    """The sum of two chains; both begin with the activation unless the shortcut is x itself."""
    active = program_of(module.activation, shape, "activation")
    residual = active.then(program_of(module.residual, active.shape, "residual"))
    other = Float64Program(lambda x: x, shape, IDENTITY)
    if module.shortcut is not None:
        other = active.then(program_of(module.shortcut, active.shape, "shortcut"))
    if residual.shape != other.shape:
        raise UnsupportedLayerError(
            module, f"its sum is of the shapes {residual.shape} and {other.shape}, of which one is repeated"
        )
    # The addition itself rounds once.
    bounds = residual.bounds.plus(other.bounds).rounded()
    return Float64Program(lambda x: residual.run(x) + other.run(x), residual.shape, bounds)


@register_rounding(GraphPart)
def _graph_part(part: GraphPart, shape: Shape) -> Float64Program:
    """Every value computed once, layers by their own programs."""
    runs: dict[torch.fx.Node, Callable[[Tensor], Tensor]] = {}

    def layer_bounds(layer: nn.Module, given: Shape, node: torch.fx.Node) -> Bounds:
        program = program_of(layer, given)
        if node.op == "call_module":
            runs[node] = program.run
        return program.bounds

    result = part.followed(shape, layer_bounds)
    return Float64Program(lambda x: part.run(x, runs), tuple(result.tensor.shape[1:]), result.bounds)
