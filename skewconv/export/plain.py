"""The plain form of a lowered model: the same map in modules that need PyTorch only, one function a primitive.

Layers of torch.nn stay what they are; a chain becomes one nn.Sequential. The table of layers tells their sizes.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import singledispatch
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from skewconv.export import plain_layers
from skewconv.nn import GroupSort, Householder, InvertibleDownsample, MaxMin, Normalize
from skewconv.nn.module_tools import recording_shapes
from skewconv.nn.primitives import (
    Convolution,
    Dense,
    Primitive,
    ResidualStep,
    ResidualSum,
    SkewExponential,
    Spectral,
    linear_module,
)
from skewconv.nn.tables import UnsupportedLayerError, register, rule_of
from skewconv.ops.convolution import adjoint_filter
from skewconv.ops.filters import odd_filter
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.series import SERIES

RuleT = TypeVar("RuleT", bound=Callable[..., Any])


@singledispatch
def plain_form(module: nn.Module) -> nn.Module:
    """The module in PyTorch alone: the table of rules."""
    if type(module).__module__.startswith("torch.nn."):
        return copy.deepcopy(module)
    raise UnsupportedLayerError(module, "nothing says how to write it without this library, so it cannot be exported")


def plain_of(module: nn.Module, path: str = "") -> nn.Module:
    """The plain form by the rule of the module's type, or a refusal by name.

    >>> plain_of(nn.Sequential(nn.Flatten(), MaxMin()))
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): MaxMin()
    )
    """
    try:
        rule = rule_of(plain_form, module)
        made: nn.Module = (plain_form if rule is None else rule)(module)
        return made
    except UnsupportedLayerError as error:
        raise error.below(path) from None


def register_plain(*kinds: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Decorate a rule (module) -> the same map in torch.nn modules, for primitives of these types."""
    return register(plain_form, kinds)


@register_plain(nn.Sequential)
def _sequential(module: nn.Sequential) -> nn.Sequential:
    chained = nn.Sequential()
    for name, child in module._modules.items():
        assert child is not None
        chained.add_module(name, plain_of(child, name))
    return chained


@register_plain(ResidualSum)
def _residual_sum(module: ResidualSum) -> nn.Module:
    parts = {name: plain_of(child, name) for name, child in module.named_children()}
    return ResidualSum(parts["activation"], parts["residual"], parts.get("shortcut"))


@register_plain(Normalize)
def _normalize(module: Normalize) -> nn.Module:
    parts = (value.detach().clone().reshape(-1, 1, 1) for value in (module.mean, module.std))
    return _on_channels(module, plain_layers.Normalize(*parts))


@register_plain(MaxMin)
def _max_min(module: MaxMin) -> nn.Module:
    return _on_channels(module, plain_layers.MaxMin())


@register_plain(GroupSort)
def _group_sort(module: GroupSort) -> nn.Module:
    if module.group_size is None:
        raise UnsupportedLayerError(module, "a full sort has groups of a size that is not known")
    return _on_channels(module, plain_layers.GroupSort(module.group_size))


@register_plain(Householder)
def _householder(module: Householder) -> nn.Module:
    half = module.theta.detach().double() / 2
    parts = (wave.to(module.theta.dtype) for wave in (half.sin(), half.cos()))
    return _on_channels(module, plain_layers.Householder(*parts))


def _on_channels(module: Any, plain: nn.Module) -> nn.Module:
    """The plain form of a layer whose channels come after the batch axis; others are refused."""
    # Counted from the end, the third axis is that of the channels of an image, which is what networks have here.
    if module.dim not in (1, -3):
        reason = f"its channels must be on axis 1 of a batch, and dim is {module.dim}"
        raise UnsupportedLayerError(module, reason)
    return plain


@register_plain(InvertibleDownsample)
def _downsample(module: InvertibleDownsample) -> nn.Module:
    stride = (module.stride, module.stride) if isinstance(module.stride, int) else module.stride
    return _downsampling(module, stride)


@register_plain(Dense)
def _dense(module: Dense) -> nn.Module:
    """One linear layer between flattened images."""
    pixels = torch.Size(module.output_shape[1:]).numel()
    bias = None if module.bias is None else module.bias.repeat_interleave(pixels)
    return nn.Sequential(nn.Flatten(), linear_module(module.weight, bias), nn.Unflatten(1, module.output_shape))


@register_plain(Convolution)
def _convolution(module: Convolution) -> nn.Module:
    """One nn.Conv2d behind the downsampling."""
    convolution = _conv_module(module.weight, module.bias, module.padding_mode, module.output_shape[1:])
    return _downsampled(module, module.stride, convolution)


@register_plain(Spectral)
def _spectral(module: Spectral) -> nn.Module:
    """The same three products."""
    bias = _bias_between(module, module.groups * module.weight.shape[2] // 2)
    weights = (module.real_weight, module.weight)
    return _folded(module, plain_layers.Spectral(*weights, module.table, bias, module.groups))


@register_plain(SkewExponential)
def _skew_exponential(module: SkewExponential) -> nn.Module:
    """The polynomial by Horner's rule: one convolution a step."""
    geometry, weight = module.geometry, module.weight
    widths = (module.read_channels, module.kept_channels)
    widths = (widths[1], widths[0]) if module.upsamples else widths
    if weight.is_complex() or geometry.axes != 2:
        raise UnsupportedLayerError(module, "its images must be real and have two axes")
    if geometry.groups > 1 and {*widths} != {len(weight)}:
        raise UnsupportedLayerError(module, "groups must have as many channels before as after, and no stride")
    dilation = (geometry.dilation[0], geometry.dilation[1])
    if geometry.padding_mode == "circular":
        weight, dilation = once_around(weight, dilation, module.image_size)
    chain = plain_layers.Chain(
        weight.contiguous(),
        _bias_between(module, widths[1]),
        _in_powers(module.polynomial, module.upsamples),
        widths,
        geometry.padding_mode,
        dilation,
        geometry.groups,
    )
    return _folded(module, chain)


def _in_powers(p: Polynomial, inverse: bool) -> tuple[float, ...]:
    """The coefficients of powers of J, or of -J."""
    series = SERIES[p.series]
    exact = series.in_powers(series.exact_coefficients(p.coefficients), p.norm_bound)
    rho = Fraction(p.norm_bound) * (-1 if inverse else 1)
    return tuple(float(c / rho**k) for k, c in enumerate(exact))


@register_plain(ResidualStep)
def _residual_step(module: ResidualStep) -> nn.Module:
    """The same two convolutions, behind the downsampling."""
    size = module.output_shape[1:]
    there = _conv_module(odd_filter(module.weight), module.bias, module.padding_mode, size)
    back = _conv_module(adjoint_filter(module.weight), None, module.padding_mode, size)
    step = plain_layers.ResidualStep(there, back, (2 * module.scale).reshape(-1, 1, 1), module.output_shape[0])
    return _downsampled(module, (module.stride, module.stride), step)


def _conv_module(weight: Tensor, bias: Tensor | None, padding_mode: str, size: Sequence[int]) -> nn.Conv2d:
    """A convolution that keeps the size (h, w) of images, with this filter (outputs, inputs, k, k) of odd sizes."""
    if padding_mode == "circular":
        weight, _ = once_around(weight, (1, 1), size)
    kernel = (weight.shape[2], weight.shape[3])
    options: dict[str, Any] = {"padding": (kernel[0] // 2, kernel[1] // 2), "padding_mode": padding_mode}
    new = nn.Conv2d(weight.shape[1], weight.shape[0], kernel, bias=bias is not None, device="meta", **options)
    new.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format), requires_grad=False)
    if bias is not None:
        new.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return new


def once_around(weight: Tensor, dilation: Sequence[int], size: Sequence[int]) -> tuple[Tensor, tuple[int, int]]:
    """A filter of odd sizes and its dilation, which go around a circular image of this size once at the most.

    PyTorch's own padding goes no further. Taps that meet one pixel are added up. Five on an axis of two pixels::

        taps       a  b  c  d  e               at -2, .. 2
        on pixels  0  1  0  1  0
        become     b + d, a + c + e, nothing   at -1, 0, 1
    """
    steps = [int(step) for step in dilation]
    for axis, (n, step) in enumerate(zip(size, tuple(steps), strict=True)):
        k = weight.shape[2 + axis]
        if step * (k // 2) <= n:
            continue
        places = (step * (torch.arange(k) - k // 2) + n // 2) % n
        shape = list(weight.shape)
        shape[2 + axis] = n + 1 - n % 2
        sums = torch.zeros(shape, dtype=torch.float64, device=weight.device)
        sums.index_add_(2 + axis, places.to(weight.device), weight.detach().double())
        weight, steps[axis] = sums.to(weight.dtype), 1
    return weight, (steps[0], steps[1])


def _bias_between(module: Any, channels: int) -> Tensor:
    """The bias of what stands between downsampling and upsampling: zeros where it is added after the latter."""
    bias: Tensor | None = None if module.upsamples else module.bias
    return module.weight.new_zeros(channels) if bias is None else bias


def _folded(module: Any, between: nn.Module) -> nn.Module:
    """Downsampling before a map, or upsampling and the bias after it."""
    if not module.upsamples:
        return _downsampled(module, module.stride, between)
    stride, bias = module.stride, module.bias
    if len(stride) != 2 or stride[0] != stride[1]:
        reason = f"only images with two axes of one stride can be upsampled, not {tuple(stride)}"
        raise UnsupportedLayerError(module, reason)
    shift = [] if bias is None else [plain_layers.Normalize(-bias.view(-1, 1, 1), torch.ones_like(bias).view(-1, 1, 1))]
    return nn.Sequential(between, nn.PixelShuffle(stride[0]), *shift)


def _downsampled(module: Primitive, stride: Sequence[int], after: nn.Module) -> nn.Module:
    """A map behind the downsampling; alone where there is none."""
    return after if max(stride) == 1 else nn.Sequential(_downsampling(module, stride), after)


def _downsampling(module: nn.Module, stride: Sequence[int]) -> nn.Module:
    if len(stride) != 2:
        reason = f"only images with two axes can be downsampled there, and the stride is {stride}"
        raise UnsupportedLayerError(module, reason)
    return nn.PixelUnshuffle(stride[0]) if stride[0] == stride[1] else plain_layers.Downsample((stride[0], stride[1]))


def flat_layers(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers that run one after another, each with its name; a sum is one of them."""
    if not isinstance(module, nn.Sequential):
        yield path, module
        return
    for name, child in module.named_children():
        yield from flat_layers(child, f"{path}.{name}" if path else name)


@dataclass(frozen=True)
class LayerRow:
    """One layer: its name in the model, its form in words, its stored numbers, its multiply-adds for one image."""

    layer: str
    form: str
    numbers: int
    multiply_adds: int


def layer_table(layers: nn.Module, input_shape: tuple[int, ...], model: nn.Module) -> list[LayerRow]:
    """A row for each layer of the plain form of a model that stores numbers, in the order in which they run."""
    known = {name for name, module in model.named_modules() if not any(module.children())}
    modules, rows = dict(layers.named_modules()), []
    with recording_shapes(modules) as met, torch.no_grad():
        layers(torch.zeros(1, *input_shape))
    for name, calls in met.items():
        module, parts = modules[name], name.split(".")
        above = [".".join(parts[:count]) for count in range(1, len(parts))]
        numbers = sum(tensor.numel() for tensor in module.state_dict().values())
        # What a residual step holds is counted as one.
        inside = any(isinstance(modules[up], plain_layers.ResidualStep) for up in above)
        whole = isinstance(module, plain_layers.ResidualStep) or not any(module.children())
        if numbers and whole and not inside:
            form, work = _form(module, calls[0].given, calls[0].made)
            rows.append(LayerRow(next((up for up in above if up in known), name), form, numbers, work))
    return rows


def _form(module: nn.Module, given: tuple[int, ...], made: tuple[int, ...]) -> tuple[str, int]:
    """A layer in words, and its multiply-adds."""
    around = ", circular" if getattr(module, "padding_mode", None) == "circular" else ""
    pixels = math.prod(made[1:])
    match module:
        case nn.Linear():
            return f"matrix {module.out_features} x {module.in_features}", module.weight.numel()
        case nn.Conv2d():
            kernel = " x ".join(map(str, module.kernel_size))
            return f"convolution {kernel}{around}", module.weight.numel() * pixels
        case plain_layers.Chain():
            degree, (inputs, outputs), width = len(module.coefficients) - 1, module.channels, len(module.weight)
            widths = [inputs, *(width,) * (degree - 1), outputs] if degree else [0]
            products = sum(a * b for a, b in pairwise(widths)) * math.prod(module.weight.shape[2:]) // module.groups
            return f"chain of {degree} convolutions{around}", products * pixels
        case plain_layers.Spectral():
            frequencies = (len(module.real_weight) + len(module.weight)) // module.groups
            products = module.real_weight.numel() + module.weight.numel() + module.table.numel() * (given[0] + made[0])
            return f"{frequencies} frequencies", products
        case plain_layers.ResidualStep():
            return "two convolutions", (module.there.weight.numel() + module.back.weight.numel()) * pixels
    return type(module).__name__, math.prod(made)
