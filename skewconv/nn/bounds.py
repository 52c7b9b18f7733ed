"""Bounds of maps, rounded up, and how they are joined; Lipschitz constants of primitives, one rule a type.

Lipschitz constants are of the map in exact arithmetic, in eval mode, with the weights as stored.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import singledispatch
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from skewconv.checks import per_axis
from skewconv.errors import NotFiniteError, ShapeError, SkewconvError
from skewconv.nn.basic_layers import GroupSort, Householder, InvertibleDownsample, MaxMin, Normalize
from skewconv.nn.gains import gain_bounds, kept_gain
from skewconv.nn.module_tools import UnsupportedLayerError, ask, evaluating, register, zeros_for
from skewconv.nn.primitives import Convolution, Dense, Primitive, ResidualStep, ResidualSum, SkewExponential, Spectral
from skewconv.ops.norms import norm_upper_bound
from skewconv.rigor import UNIT_ROUNDOFF, factor_up, gamma, in_double, product_up, spectral_norm_upper_bound, sqrt_up

Shape: TypeAlias = tuple[int, ...]
RuleT = TypeVar("RuleT", bound=Callable[..., Any])


_SUM_UP = factor_up(64)
#: Nothing overflows while results are below: what a layer adds up on the way there is at most a million times as large.
LARGEST = 2.0**1000


def _product_up(a: float, b: float) -> float:
    """a b for non-negative bounds, rounded up, with room for one more rounding; zero only where a or b is zero."""
    product = a * b * _SUM_UP
    # Near the denormals a product errs by more than a share of itself.
    return math.nextafter(product, math.inf) if product < 2.0**-1000 and a > 0 and b > 0 else product


class AffineBound(NamedTuple):
    """The affine bound n -> slope n + constant of the norm n of an input, both non-negative."""

    slope: float
    constant: float

    def plus(self, other: "AffineBound") -> "AffineBound":
        return AffineBound((self.slope + other.slope) * _SUM_UP, (self.constant + other.constant) * _SUM_UP)

    def times(self, factor: float) -> "AffineBound":
        return AffineBound(_product_up(self.slope, factor), _product_up(self.constant, factor))

    def after(self, inner: "AffineBound") -> "AffineBound":
        constant = (_product_up(self.slope, inner.constant) + self.constant) * _SUM_UP
        return AffineBound(_product_up(self.slope, inner.slope), constant)

    def at(self, norm: float) -> float:
        return (_product_up(self.slope, norm) + self.constant) * _SUM_UP

    def stays_below(self, limit: float) -> float:
        """The largest norm at which the value is at most this, rounded down; -1 if there is none."""
        if not (self.slope >= 0 and self.constant * _SUM_UP <= limit / _SUM_UP):
            return -1.0
        room = limit / _SUM_UP - self.constant * _SUM_UP
        return math.inf if self.slope == 0 else room / self.slope / _SUM_UP**2


ZERO = AffineBound(0.0, 0.0)
# Products that underflow lose less than 2^-1074 each; no layer has 2^100 of them.
UNDERFLOW = AffineBound(0.0, 2.0**-970)


@dataclass(frozen=True)
class Bounds:
    """What is proven of a map f and of a program that computes it.

    f has the Lipschitz constant ``lipschitz``, ||f(x)|| <= norm(||x||) and ||computed - f(x)|| <= error(||x||), each
    row of a batch; no intermediate value overflows for ||x|| <= ``max_input_norm``.
    """

    lipschitz: float
    norm: AffineBound
    error: AffineBound = ZERO
    max_input_norm: float = LARGEST

    def __post_init__(self) -> None:
        most = min(self.max_input_norm, self.norm.plus(self.error).stays_below(LARGEST))
        object.__setattr__(self, "max_input_norm", most)

    def then(self, other: "Bounds") -> "Bounds":
        """The other after this one: its own error on what was computed, and its stretching of the error made so far."""
        met = self.norm.plus(self.error)
        return Bounds(
            _product_up(self.lipschitz, other.lipschitz),
            other.norm.after(self.norm),
            other.error.after(met).plus(self.error.times(other.lipschitz)),
            min(self.max_input_norm, met.stays_below(other.max_input_norm)),
        )

    def plus(self, other: "Bounds") -> "Bounds":
        """The sum of two maps of one input, before it is rounded."""
        return Bounds(
            (self.lipschitz + other.lipschitz) * _SUM_UP,
            self.norm.plus(other.norm),
            self.error.plus(other.error),
            min(self.max_input_norm, other.max_input_norm),
        )

    def scale(self, factor: float) -> "Bounds":
        """A linear map of at most this norm after it, before it is rounded."""
        return replace(
            self,
            lipschitz=_product_up(self.lipschitz, factor),
            norm=self.norm.times(factor),
            error=self.error.times(factor),
        )

    def shifted(self, size: float) -> "Bounds":
        """A constant of this norm added, before the sum is rounded."""
        return replace(self, norm=self.norm.plus(AffineBound(0.0, size)))

    def rounded(self, operations: int = 1) -> "Bounds":
        share = gamma(operations) if operations > 1 else UNIT_ROUNDOFF
        return replace(self, error=self.error.plus(self.norm.plus(self.error).times(share).plus(UNDERFLOW)))


IDENTITY = Bounds(1.0, AffineBound(1.0, 0.0))


def joined(parts: Sequence[Bounds]) -> Bounds:
    """Maps side by side: squares add up, for slopes and for constants apart (Minkowski)."""

    def beside(bounds: Sequence[AffineBound]) -> AffineBound:
        return AffineBound(*(math.hypot(*numbers) * _SUM_UP for numbers in zip(*bounds, strict=True)))

    lipschitz = math.hypot(*(part.lipschitz for part in parts)) * _SUM_UP
    norm, error = beside([part.norm for part in parts]), beside([part.error for part in parts])
    return Bounds(lipschitz, norm, error, min(part.max_input_norm for part in parts))


@singledispatch
def lipschitz_bound(module: nn.Module, shape: Shape) -> float:
    """A proven Lipschitz constant of a primitive for inputs of this shape: the table of rules."""
    raise UnsupportedLayerError(module, "no Lipschitz bound is known for its type")


def bound_of(module: nn.Module, shape: Shape, path: str = "") -> float:
    return float(ask(lipschitz_bound, module, shape, path=path))


def is_primitive(module: nn.Module) -> bool:
    """True for modules whose type, or a type they inherit from, has a bound."""
    return lipschitz_bound.dispatch(type(module)) is not lipschitz_bound.dispatch(object)


def register_bound(*kinds: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Decorate a rule (module, input_shape) -> float that bounds modules of these types.

    >>> from skewconv.nn import lipschitz_upper_bound
    >>> class Half(nn.Module):
    ...     def forward(self, x):
    ...         return x / 2
    >>> @register_bound(Half)
    ... def half(module, input_shape):
    ...     return 0.5
    >>> lipschitz_upper_bound(Half(), (3,))
    0.5
    """
    return register(lipschitz_bound, kinds)


def output_shape(module: nn.Module, input_shape: Shape) -> Shape:
    """The shape of one output in eval mode."""
    y = run_zeros(module, input_shape)
    if not isinstance(y, Tensor):
        raise UnsupportedLayerError(module, f"it returns a {type(y).__name__} instead of one tensor")
    return tuple(y.shape[1:])


def run_zeros(module: nn.Module, input_shape: Shape) -> Any:
    """What a module makes of zeros in eval mode; flags and random numbers stay as they were."""
    x = zeros_for(module, input_shape)
    generators = [] if x.device.type == "cpu" else [x.device]
    forked = torch.random.fork_rng(generators, device_type=x.device.type if generators else "cuda")
    try:
        with evaluating(module), torch.no_grad(), forked:
            return module(x)
    except SkewconvError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        raise ShapeError(f"{type(module).__name__} does not take an input of shape {input_shape}: {error}") from error


def _constant(value: float, *kinds: type[nn.Module]) -> None:
    register_bound(*kinds)(lambda module, shape: value)


# Permutations, cuts, padding, and activations whose slope is at most one.
_constant(
    1.0,
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
    *(nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Tanh, nn.Softsign, nn.LogSigmoid, InvertibleDownsample),
)
_constant(0.25, nn.Sigmoid)  # the slope at zero
_constant(1.1, nn.SiLU)  # the derivative's maximum is 1.09984, at x = 2.39936
_constant(1.13, nn.GELU)  # 1.12890 at x = sqrt(2), and 1.12904 for the approximation by tanh
_constant(1.7581, nn.SELU)  # scale * alpha = 1.0507009873... * 1.6732632423...
_constant(0.5, nn.Softmax)  # diag(p) - p p^T has the Gershgorin bound 2 p_i (1 - p_i)


@register_bound(nn.LeakyReLU, nn.PReLU, nn.ELU)
def _slopes(module: Any, shape: Shape) -> float:
    """One, or the slope of the negative side."""
    if isinstance(module, nn.PReLU):
        slope = float(in_double(module.weight).abs().max())
    else:
        slope = abs(module.alpha if isinstance(module, nn.ELU) else module.negative_slope)
    return 1.0 if slope <= 1.0 else slope  # max(1.0, nan) would be 1.0


@register_bound(nn.CELU)
def _celu(module: nn.CELU, shape: Shape) -> float:
    """One: exp(x / alpha) is below one where x is negative."""
    if not module.alpha > 0:
        raise UnsupportedLayerError(module, f"with alpha={module.alpha} <= 0 its slope grows without limit")
    return 1.0


@register_bound(MaxMin, GroupSort, Householder)
def _sorting(module: MaxMin | GroupSort | Householder, shape: Shape) -> float:
    """1: sorting and folding move two points no further apart."""
    if module.dim % (len(shape) + 1) == 0:
        raise UnsupportedLayerError(
            module, f"dim={module.dim} is the axis of the batch, of which it would mix the images"
        )
    if isinstance(module, Householder) and module.theta.shape[1:] != (module.channels // 2,):
        reason = f"its angles have the shape {tuple(module.theta.shape)} for {module.channels} channels"
        raise UnsupportedLayerError(module, reason)
    return 1.0


@register_bound(Normalize)
def _normalize(module: Normalize, shape: Shape) -> float:
    if max(module.mean.dim(), module.std.dim()) > 1:
        raise UnsupportedLayerError(module, "its mean and std must have one number a channel")
    return module.gain_bounds()[1]


@register_bound(Dense, Convolution, Spectral, SkewExponential, ResidualStep)
def _proven(module: Primitive, shape: Shape) -> float:
    """The largest gain that is proven of the tensors as they are, for the shapes that the primitive states."""
    if tuple(shape) != module.input_shape:
        raise UnsupportedLayerError(module, f"it states inputs of shape {module.input_shape}, and meets {tuple(shape)}")
    return gain_bounds(module)[1]


@register_bound(nn.Linear)
def _linear(module: nn.Linear, shape: Shape) -> float:
    """The norm that was proven when the matrix was made, or its spectral norm."""
    kept = kept_gain(module)
    return spectral_norm_upper_bound(module.weight) if kept is None else kept[1]


@register_bound(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv(module: nn.Conv2d, shape: Shape) -> float:
    """Fewer outputs (stride, cropping) and zeros around the image only restrict the convolution on the whole grid."""
    if module.padding_mode == "circular":
        # What the forward reads, (before, after) from the last axis to the first; the attribute padding may be edited.
        pads = module._reversed_padding_repeated_twice
        room = [d * (k - 1) for d, k in zip(module.dilation, module.weight.shape[2:], strict=True)]
        if any(a + b > n for a, b, n in zip(pads[::2], pads[1::2], reversed(room), strict=True)):
            raise UnsupportedLayerError(
                module, "its circular padding is wider than the kernel, so outputs are repeated"
            )
    elif module.padding_mode != "zeros":
        raise UnsupportedLayerError(module, f"padding_mode={module.padding_mode!r} repeats pixels at the border")
    return norm_upper_bound(module.weight, groups=module.groups)


@register_bound(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _conv_transpose(module: nn.ConvTranspose2d, shape: Shape) -> float:
    """The norm of the adjoint convolution."""
    return norm_upper_bound(module.weight, groups=module.groups)


@register_bound(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(module: nn.BatchNorm2d, shape: Shape) -> float:
    """max |weight| / sqrt(variance + eps), exactly."""
    if module.running_var is None:
        raise UnsupportedLayerError(module, "without running statistics each input is divided by its own deviation")
    variances = in_double(module.running_var).tolist()
    # What the forward reads; the attribute affine may be edited.
    factors = [1.0] * len(variances) if module.weight is None else in_double(module.weight).abs().tolist()
    if any(not (math.isfinite(v) and v + module.eps > 0) for v in variances) or not all(map(math.isfinite, factors)):
        raise NotFiniteError("BatchNorm holds a NaN or infinite weight, or a running variance that is not positive")
    pairs = zip(factors, variances, strict=True)
    return sqrt_up(max(Fraction(g) ** 2 / (Fraction(v) + Fraction(module.eps)) for g, v in pairs))


def axes_of(module: nn.Module) -> int:
    """The number of spatial axes in the name of a pooling layer."""
    kind = next(kind for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn"))
    return int(kind.__name__[-2])


@register_bound(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
def _avg_pool(module: Any, shape: Shape) -> float:
    """||A||^2 <= (largest row sum) (largest column sum)."""
    axes = axes_of(module)
    kernel, stride = per_axis(module.kernel_size, axes, "kernel_size"), per_axis(module.stride, axes, "stride")
    window, overlap = math.prod(kernel), _overlap(kernel, stride, (1,) * axes)
    # A window of n values divides by n: rows sum to one at most.
    divisor = getattr(module, "divisor_override", None)
    if divisor is not None:
        return sqrt_up(Fraction(window * overlap, divisor**2))
    padded = module.padding not in (0, (0,) * axes)
    truncated = module.ceil_mode or (padded and not module.count_include_pad)
    return sqrt_up(Fraction(overlap, 1 if truncated else window))


@register_bound(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
def _max_pool(module: Any, shape: Shape) -> float:
    """The root of the number of windows that a value can be the maximum of."""
    if module.return_indices:
        raise UnsupportedLayerError(module, "it returns indices")
    axes = axes_of(module)
    kernel, stride = per_axis(module.kernel_size, axes, "kernel_size"), per_axis(module.stride, axes, "stride")
    # The square of each output's change is at most that of one input of its window; an input is in that many windows.
    return sqrt_up(Fraction(_overlap(kernel, stride, per_axis(module.dilation, axes, "dilation"))))


@register_bound(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
def _adaptive_avg_pool(module: Any, shape: Shape) -> float:
    """||A||^2 <= largest column sum, as rows sum to one; axis by axis."""
    axes = axes_of(module)
    if len(shape) != axes + 1:
        raise ShapeError(f"{type(module).__name__} takes inputs (c, *size) with {axes} spatial axes, got {shape}")
    wanted = module.output_size
    sizes = (wanted,) * axes if wanted is None or isinstance(wanted, int) else tuple(wanted)
    square = Fraction(1)
    for n, out in zip(shape[1:], sizes, strict=True):
        columns = [Fraction(0)] * n
        for i in range(n if out is None else out):
            start, end = i * n // (out or n), -(-(i + 1) * n // (out or n))
            for j in range(start, end):
                columns[j] += Fraction(1, end - start)
        square *= max(columns)
    return sqrt_up(square)


def _overlap(kernel: Iterable[int], stride: Iterable[int], dilation: Iterable[int]) -> int:
    """The most windows that one value can belong to: tap j of window w reads value w s + j d."""
    steps = zip(kernel, stride, dilation, strict=True)
    return math.prod(-(-k // (s // math.gcd(s, d))) for k, s, d in steps)


@register_bound(nn.Sequential)
def _sequential(module: nn.Sequential, shape: Shape) -> float:
    # A module that is held twice runs twice.
    return chain_bound([(name, child) for name, child in module._modules.items() if child is not None], shape)


def chain_bound(layers: Sequence[tuple[str, nn.Module]], shape: Shape) -> float:
    """The product of the bounds of layers one after the other, each at the shape that it meets."""
    factors = []
    for position, (name, layer) in enumerate(layers):
        factors.append(bound_of(layer, shape, name))
        if position + 1 < len(layers):
            shape = output_shape(layer, shape)
    return product_up(factors)


@register_bound(ResidualSum)
def _residual_sum(module: ResidualSum, shape: Shape) -> float:
    """|s| |a| + |r| |a|, or 1 + |r| |a| where the shortcut is x itself."""
    after = output_shape(module.activation, shape)
    parts = {
        name: bound_of(child, shape if name == "activation" else after, name) for name, child in module.named_children()
    }
    made = output_shape(module.residual, after)
    beside = tuple(shape) if module.shortcut is None else output_shape(module.shortcut, after)
    if made != beside:
        raise UnsupportedLayerError(module, f"its sum is of the shapes {made} and {beside}, of which one is repeated")
    active = parts["activation"]
    shortcut = 1.0 if module.shortcut is None else product_up([parts["shortcut"], active])
    # Doubling is exact, so rounding the product with 1 + 2^-52 up covers the rounding of the sum.
    return product_up([shortcut + product_up([parts["residual"], active]), factor_up(2)])
