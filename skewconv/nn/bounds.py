"""The Lipschitz protocol: a proven l2 bound for every module, or a refusal that names the module.

A module takes part by a method ``lipschitz_upper_bound(input_shape) -> float`` (input_shape without the batch axis)
that bounds its map in eval mode. Plain PyTorch modules cannot carry one; for those there are rules, found by exact
type: a subclass may compute anything.
"""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from skewconv.errors import ArgumentError, DtypeError, NotFiniteError, ShapeError, UnboundedModuleError
from skewconv.ops._eigen import OUTWARD, gamma, in_double, spectral_norm_upper_bound, squaring_upper_bound
from skewconv.ops.checks import per_axis
from skewconv.ops.norms import norm_upper_bound

Shape: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[Any, Shape], float]
RuleT = TypeVar("RuleT", bound=Rule)

_RULES: dict[type[nn.Module], Rule] = {}


class _UnboundedError(UnboundedModuleError):
    """Remembers the module, so that every enclosing model can lengthen the path to it."""

    def __init__(self, module: nn.Module, reason: str, path: str = "") -> None:
        self.module, self.reason, self.path = module, reason, path
        where = f"'{path}'" if path else "the model itself"
        kind = type(module)
        super().__init__(
            f"no Lipschitz bound is known for {where} ({kind.__module__}.{kind.__qualname__}): {reason}; give the "
            "class a method lipschitz_upper_bound(input_shape) -> float, register a rule with "
            "skewconv.nn.register_bound, or replace the module"
        )

    def seen_from(self, model: nn.Module) -> "_UnboundedError":
        paths = (name for name, module in model.named_modules() if module is self.module)
        return _UnboundedError(self.module, self.reason, next(paths, self.path))


def lipschitz_upper_bound(model: nn.Module, input_shape: Iterable[int]) -> float:
    """L with ||f(x) - f(y)|| <= L ||x - y|| for all x, y: proved, for the map f that the model computes in eval mode.

    >>> from torch import nn
    >>> lipschitz_upper_bound(nn.Sequential(nn.Flatten(), nn.ReLU()), (3, 8, 8))
    1.0

    Args:
        model: a module with a method ``lipschitz_upper_bound``, or of a registered type. Its weights, buffers and
            training flags are left as they are.
        input_shape: the shape of one input, without the batch axis.

    The bound is of the map in exact arithmetic with the weights as stored; the rounding of an evaluation is not in it.
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    shape = tuple(input_shape)
    if any(type(n) is not int or n < 1 for n in shape):
        raise ShapeError(f"input_shape must hold integers >= 1, without the batch axis, got {shape}")
    try:
        bound = _bound(model, shape)
    except _UnboundedError as error:
        raise error.seen_from(model) from None
    if not (math.isfinite(bound) and bound >= 0):
        raise NotFiniteError(f"the Lipschitz bound of {type(model).__name__} is {bound}; are its weights finite?")
    return bound


def _bound(model: nn.Module, shape: Shape) -> float:
    if model._forward_hooks or model._forward_pre_hooks:
        raise _UnboundedError(model, "it has forward hooks, which may change what it computes")
    method = getattr(model, "lipschitz_upper_bound", None)
    if callable(method):
        return float(method(shape))
    rule = _RULES.get(type(model))
    if rule is None:
        raise _UnboundedError(model, "its type is not registered (a subclass of a registered type does not count)")
    if "forward" in vars(model):
        raise _UnboundedError(model, "its forward was replaced on the instance")
    return float(rule(model, shape))


def register_bound(*kinds: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Decorate a rule (module, input_shape) -> float that bounds modules of exactly these types.

    >>> from torch import nn
    >>> class Half(nn.Module):
    ...     def forward(self, x):
    ...         return x / 2
    >>> @register_bound(Half)
    ... def half(module, input_shape):
    ...     return 0.5
    >>> lipschitz_upper_bound(Half(), (3,))
    0.5
    """
    for kind in kinds:
        if kind in _RULES:
            raise ArgumentError(f"a bound is already registered for {kind.__qualname__}; it is not replaced silently")

    def register(rule: RuleT) -> RuleT:
        _RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def output_shape(module: nn.Module, input_shape: Shape) -> Shape:
    """The shape of one output in eval mode, by running zeros; flags, buffers and random numbers stay as they were."""
    flags = [(m, m.training) for m in module.modules()]
    tensors = [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point() or t.is_complex()]
    like = tensors[0] if tensors else torch.empty(0)
    x = torch.zeros(1, *input_shape, dtype=like.dtype, device=like.device)
    generators = [] if x.device.type == "cpu" else [x.device]
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        for m, _ in flags:
            m.training = False
        with torch.no_grad(), torch.random.fork_rng(generators, device_type=x.device.type if generators else "cuda"):
            y = torch.func.functional_call(module, buffers, (x,))
    except (RuntimeError, ValueError, IndexError) as error:
        raise ShapeError(f"{type(module).__name__} does not take an input of shape {input_shape}: {error}") from error
    finally:
        for m, training in flags:
            m.training = training
    if not isinstance(y, Tensor):
        raise _UnboundedError(module, f"it returns a {type(y).__name__} instead of one tensor")
    return tuple(y.shape[1:])


def round_up(value: Fraction) -> float:
    """The least float64 >= value."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def product_up(factors: Iterable[float]) -> float:
    """The product of non-negative bounds, each step rounded up; ones stay exactly one.

    >>> product_up([1.0, 1.0]), product_up([0.1] * 3) > 0.1**3
    (1.0, True)
    """
    product = 1.0
    for factor in factors:
        exact = math.isfinite(product) and math.isfinite(factor)
        product = round_up(Fraction(product) * Fraction(factor)) if exact else product * factor
    return product


def sqrt_up(value: Fraction) -> float:
    """A float64 >= the square root, within two units in the last place."""
    root = math.sqrt(round_up(value))
    return root if Fraction(root) ** 2 >= value else math.nextafter(root, math.inf)


def gram_defect(matrix: Tensor, square: float = 1.0) -> float:
    """An upper bound of ||A^H A - s I||, or of ||A A^H - s I|| if A is wide, rounding included; max over the batch.

    Args:
        matrix: (*batch, rows, columns), floating or complex.
        square: s, the square that the singular values should have.
    """
    a = in_double(matrix.reshape(-1, *matrix.shape[-2:]))
    if not bool(torch.isfinite(a).all()):
        return math.nan
    tall = a if a.shape[-2] >= a.shape[-1] else a.mH
    residual = tall.mH @ tall - square * torch.eye(tall.shape[-1], dtype=a.dtype)
    # |fl(A^H A) - A^H A| <= gamma_k |A|^H |A| entry by entry (Higham, section 3.5), of norm <= gamma_k ||A||_F^2.
    frobenius = float(torch.linalg.vector_norm(a, dim=(-2, -1)).square().max())
    rounding = gamma(tall.shape[-2] + 4, is_complex=a.is_complex()) * frobenius * (1 + 1e-6)
    return (squaring_upper_bound(residual, 2) + rounding) * OUTWARD


def non_expansive(
    exact: Tensor, dtype: torch.dtype, defect: Callable[[Tensor, float], float] = gram_defect
) -> tuple[float, tuple[float, float]]:
    """A scale near one with which ``(exact * scale).to(dtype)`` has a gain proved to be <= 1, and its (min, max) gain.

    If ||A^H A - s I|| <= e, the singular values of A lie between sqrt(s - e) and sqrt(s + e). The proof is of the
    rounded tensor, and scaling rounds anew, so it is repeated until s + e <= 1. A tensor too far from orthogonal keeps
    its scale, and the gain returned says what it is.

    Args:
        exact: close to orthogonal, in float64 or complex128.
        dtype: what the layer stores.
        defect: (tensor, s) -> an upper bound e.
    """
    square = 1.0
    for attempt in range(5):
        scale = math.sqrt(square)
        e = defect((exact * scale).to(dtype), square)
        if not math.isfinite(e):
            return scale, (math.nan, math.nan)
        largest = sqrt_up(Fraction(square) + Fraction(e))
        if largest <= 1.0 or e > 0.5:
            break
        # A tensor that is exactly orthogonal, such as the identity, only shrinks in steps of its precision.
        square = 1.0 - 1.01 * e - attempt * torch.finfo(dtype).eps
    return scale, (max(0.0, math.sqrt(max(0.0, square - e)) - 4 * math.ulp(1.0)), largest)


@register_bound(
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
    *(nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Tanh, nn.Softsign, nn.LogSigmoid),
)
def _one(module: nn.Module, shape: Shape) -> float:
    return 1.0


@register_bound(nn.Sigmoid)
def _sigmoid(module: nn.Sigmoid, shape: Shape) -> float:
    return 0.25


@register_bound(nn.SiLU)
def _silu(module: nn.SiLU, shape: Shape) -> float:
    return 1.1  # the derivative's maximum is 1.09984, at x = 2.39936


@register_bound(nn.GELU)
def _gelu(module: nn.GELU, shape: Shape) -> float:
    return 1.13  # the derivative's maximum is 1.12890 at x = sqrt(2), and 1.12904 for the approximation by tanh


@register_bound(nn.LeakyReLU)
def _leaky_relu(module: nn.LeakyReLU, shape: Shape) -> float:
    return _at_least_one(abs(module.negative_slope))


@register_bound(nn.PReLU)
def _prelu(module: nn.PReLU, shape: Shape) -> float:
    return _at_least_one(float(in_double(module.weight).abs().max()))


@register_bound(nn.ELU)
def _elu(module: nn.ELU, shape: Shape) -> float:
    return _at_least_one(abs(module.alpha))


@register_bound(nn.CELU)
def _celu(module: nn.CELU, shape: Shape) -> float:
    if not module.alpha > 0:
        raise _UnboundedError(module, f"with alpha={module.alpha} <= 0 its slope grows without limit")
    return 1.0


@register_bound(nn.SELU)
def _selu(module: nn.SELU, shape: Shape) -> float:
    return 1.7581  # scale * alpha = 1.0507009873... * 1.6732632423...


@register_bound(nn.Softmax)
def _softmax(module: nn.Softmax, shape: Shape) -> float:
    return 0.5  # diag(p) - p p^T has the Gershgorin bound 2 p_i (1 - p_i)


@register_bound(nn.Sequential)
def _sequential(module: nn.Sequential, shape: Shape) -> float:
    factors = []
    children = list(module)
    for position, child in enumerate(children):
        factors.append(lipschitz_upper_bound(child, shape))
        if position + 1 < len(children):
            shape = output_shape(child, shape)
    return product_up(factors)


@register_bound(nn.Linear)
def _linear(module: nn.Linear, shape: Shape) -> float:
    return spectral_norm_upper_bound(module.weight)


@register_bound(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, shape: Shape) -> float:
    # Fewer outputs (stride, cropping) and zeros around the image only restrict the convolution on the whole grid.
    if module.padding_mode == "circular":
        if not isinstance(module.padding, str):
            needed = (d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True))
            if any(2 * p > n for p, n in zip(module.padding, needed, strict=True)):
                raise _UnboundedError(module, "its circular padding is wider than the kernel, so outputs are repeated")
    elif module.padding_mode != "zeros":
        raise _UnboundedError(module, f"padding_mode={module.padding_mode!r} repeats pixels at the border")
    return norm_upper_bound(module.weight, groups=module.groups)


@register_bound(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _conv_transpose(module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d, shape: Shape) -> float:
    return norm_upper_bound(module.weight, groups=module.groups)


@register_bound(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(module: nn.BatchNorm2d, shape: Shape) -> float:
    if module.running_var is None:
        raise _UnboundedError(module, "without running statistics each input is divided by its own deviation")
    variances = in_double(module.running_var).tolist()
    factors = in_double(module.weight).abs().tolist() if module.affine else [1.0] * len(variances)
    if any(not (math.isfinite(v) and v + module.eps > 0) for v in variances) or not all(map(math.isfinite, factors)):
        raise NotFiniteError("BatchNorm holds a NaN or infinite weight, or a running variance that is not positive")
    pairs = zip(factors, variances, strict=True)
    return sqrt_up(max(Fraction(g) ** 2 / (Fraction(v) + Fraction(module.eps)) for g, v in pairs))


@register_bound(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
def _avg_pool(module: nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d, shape: Shape) -> float:
    axes = {nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3}[type(module)]
    kernel, stride = per_axis(module.kernel_size, axes, "kernel_size"), per_axis(module.stride, axes, "stride")
    window, overlap = math.prod(kernel), _overlap(kernel, stride, (1,) * axes)
    # ||A||^2 <= (largest row sum) (largest column sum). A window of n values divides by n: rows sum to one at most.
    divisor = getattr(module, "divisor_override", None)
    if divisor is not None:
        return sqrt_up(Fraction(window * overlap, divisor**2))
    padded = module.padding not in (0, (0,) * axes)
    truncated = module.ceil_mode or (padded and not module.count_include_pad)
    return sqrt_up(Fraction(overlap, 1 if truncated else window))


@register_bound(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
def _max_pool(module: nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d, shape: Shape) -> float:
    if module.return_indices:
        raise _UnboundedError(module, "it returns indices")
    axes = {nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3}[type(module)]
    kernel, stride = per_axis(module.kernel_size, axes, "kernel_size"), per_axis(module.stride, axes, "stride")
    # The square of each output's change is at most that of one input of its window; an input is in so many windows.
    return sqrt_up(Fraction(_overlap(kernel, stride, per_axis(module.dilation, axes, "dilation"))))


@register_bound(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
def _adaptive_avg_pool(
    module: nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d | nn.AdaptiveAvgPool3d, shape: Shape
) -> float:
    axes = {nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, nn.AdaptiveAvgPool3d: 3}[type(module)]
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


def _at_least_one(slope: float) -> float:
    return 1.0 if slope <= 1.0 else slope  # max(1.0, nan) would be 1.0
