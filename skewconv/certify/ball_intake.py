"""The door to the proof in balls: primitives as NumPy arrays, one function a type; others are refused by name.

The numbers that define the function are those of the model's float64 copy: filters, matrices, coefficients. Nothing
behind the door knows of PyTorch.
"""

from collections.abc import Callable, Iterator
from functools import singledispatch
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from skewconv import ball
from skewconv.ball.exact import Floats, Integers
from skewconv.ball.pixels import unshuffled
from skewconv.certify.certifier import refuse_another_function
from skewconv.checks import per_axis
from skewconv.nn import GroupSort, Householder, InvertibleDownsample, MaxMin, Normalize
from skewconv.nn.bounds import Shape, axes_of, output_shape
from skewconv.nn.lowering import chain, lower
from skewconv.nn.module_tools import first_tensor
from skewconv.nn.primitives import Convolution, Dense, ResidualStep, ResidualSum, SkewExponential, Spectral
from skewconv.nn.tables import UnsupportedLayerError, register, rule_of

RuleT = TypeVar("RuleT", bound=Callable[..., Any])


@singledispatch
def ball_layer(module: nn.Module, shape: Shape) -> ball.Layer:
    """A primitive in float64 for inputs of this shape as arrays: the table of rules."""
    raise UnsupportedLayerError(module, "it cannot be proven in ball arithmetic; check it in float64")


def register_ball(*kinds: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Decorate a rule (module, input_shape) -> a layer of :mod:`skewconv.ball`, for primitives of these types."""
    return register(ball_layer, kinds)


def described(model: nn.Module, shape: Shape) -> Iterator[tuple[str, ball.Layer]]:
    """(name, description) of each primitive in the order they run, one at a time: filters are large.

    Args:
        model: in float64 and eval mode, on the CPU.
        shape: of one image.
    """
    lowered = lower(model, shape)
    links = chain(lowered)

    def run(x: Tensor) -> Tensor:
        for _, module in links:
            x = module(x)
        return x

    refuse_another_function(model, run, shape, first_tensor(model).device)
    for name, module in links:
        yield name, _described(module, shape, name)
        shape = output_shape(module, shape)


def _described(module: nn.Module, shape: Shape, path: str = "") -> ball.Layer:
    try:
        rule = rule_of(ball_layer, module)
        layer: ball.Layer = (ball_layer if rule is None else rule)(module, shape)
        return layer
    except UnsupportedLayerError as error:
        raise error.below(path) from None


def _array(value: Tensor) -> Floats:
    return np.ascontiguousarray(value.detach().cpu().double().numpy())


def _bias(module: Any) -> Floats | None:
    return None if module.bias is None else _array(module.bias)


def _torus(size: Shape, kernel: Shape, dilation: Shape, *, circular: bool) -> Shape:
    """A torus that holds images of this size, with room for the taps where zeros surround them."""
    room = [d * (k // 2) for d, k in zip(dilation, kernel, strict=True)]
    return tuple(n if circular else n + r for n, r in zip(size, room, strict=True))


@register_ball(SkewExponential)
def _skew_exponential(module: SkewExponential, shape: Shape) -> ball.Layer:
    p, g, weight = module.polynomial, module.geometry, _array(module.weight)
    if module.weight.is_complex():
        raise UnsupportedLayerError(module, "complex layers cannot be proven in ball arithmetic")
    blocks = weight.reshape(g.groups, -1, *weight.shape[1:])
    mirrored = np.flip(blocks.swapaxes(1, 2), tuple(range(3, blocks.ndim)))
    if not np.array_equal(blocks, -mirrored):
        raise UnsupportedLayerError(module, "its filter is not skew-symmetric")
    # The norm of every image size is cheaper to bound; where it is too large, that of this size is.
    anywhere = _norm_anywhere(weight, g.groups) <= p.norm_bound * (1 + 1e-9)
    torus = _torus(module.image_size, g.kernel, g.dilation, circular=g.padding_mode == "circular")
    return ball.SkewExponential(
        weight,
        tuple(p.coefficients),
        p.norm_bound,
        p.series,
        module.read_channels if module.upsamples else module.kept_channels,
        tuple(module.stride),
        _bias(module),
        g.padding_mode,
        tuple(g.dilation),
        g.groups,
        module.upsamples,
        torus=None if anywhere else torus,
    )


def _norm_anywhere(weight: Floats, groups: int) -> float:
    """About the loose bound of the norm that filters are scaled by."""
    kernel = weight.shape[2:]
    matrices = [np.moveaxis(block, 1, -1) for block in np.split(weight, groups)]
    rows = [len(matrices[0]) * int(np.prod(kernel[:j])) for j in range(max(1, len(kernel)))]
    norms = [max(np.linalg.norm(matrix.reshape(r, -1), 2) for matrix in matrices) for r in rows]
    return float(min(norms) * np.sqrt(np.prod(kernel)))


@register_ball(Dense)
def _dense(module: Dense, shape: Shape) -> ball.Layer:
    return ball.Dense(_array(module.weight), tuple(module.output_shape), _bias(module))


@register_ball(Convolution)
def _convolution(module: Convolution, shape: Shape) -> ball.Layer:
    size, kernel = module.output_shape[1:], module.geometry.kernel
    torus = _torus(size, kernel, (1,) * len(size), circular=module.padding_mode == "circular")
    return ball.Convolution(_array(module.weight), tuple(module.stride), _bias(module), module.padding_mode, torus)


@register_ball(Spectral)
def _spectral(module: Spectral, shape: Shape) -> ball.Layer:
    return ball.Spectral(
        _array(module.real_weight),
        _array(module.weight),
        _array(module.table),
        module.groups,
        tuple(module.stride),
        module.upsamples,
        _bias(module),
    )


@register_ball(ResidualStep)
def _residual_step(module: ResidualStep, shape: Shape) -> ball.Layer:
    size, kernel = module.output_shape[1:], tuple(module.weight.shape[2:])
    torus = _torus(size, tuple(k + 1 for k in kernel), (1, 1), circular=module.padding_mode == "circular")
    common = (_bias(module), module.output_shape[0], (module.stride,) * 2, module.padding_mode, torus)
    return ball.ResidualStep(_array(module.weight), _array(module.scale).reshape(-1), *common)


@register_ball(ResidualSum)
def _residual_sum(module: ResidualSum, shape: Shape) -> ball.Layer:
    def layers(part: nn.Module, shape: Shape, path: str) -> list[ball.Layer]:
        found = []
        for name, child in chain(part, path):
            found.append(_described(child, shape, name))
            shape = output_shape(child, shape)
        return found

    after = output_shape(module.activation, shape)
    active, residual = layers(module.activation, shape, "activation"), layers(module.residual, after, "residual")
    shortcut = None if module.shortcut is None else layers(module.shortcut, after, "shortcut")
    return ball.ResidualSum(active, residual, shortcut)


@register_ball(nn.Linear)
def _linear(module: nn.Linear, shape: Shape) -> ball.Layer:
    return ball.Linear(_array(module.weight), _bias(module))


@register_ball(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv(module: nn.Conv2d, shape: Shape) -> ball.Layer:
    reversed_pads = module._reversed_padding_repeated_twice
    pairs = list(zip(reversed_pads[::2], reversed_pads[1::2], strict=True))[::-1]
    circular = module.padding_mode == "circular"
    if not circular and module.padding_mode != "zeros":
        raise UnsupportedLayerError(module, f"padding_mode={module.padding_mode!r} repeats pixels at the border")
    room = [d * (k - 1) for d, k in zip(module.dilation, module.weight.shape[2:], strict=True)]
    if circular and any(a + b > n for (a, b), n in zip(pairs, room, strict=True)):
        raise UnsupportedLayerError(module, "its circular padding is wider than the kernel, so outputs are repeated")
    torus = tuple(n if circular else n + r for n, r in zip(shape[1:], room, strict=True))
    options = (tuple(module.stride), tuple(module.dilation), module.groups, module.padding_mode, torus)
    return ball.StridedConvolution(_array(module.weight), _bias(module), tuple(pairs), *options)


@register_ball(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
def _pool(module: Any, shape: Shape) -> ball.Layer:
    axes = axes_of(module)
    kernel, stride = per_axis(module.kernel_size, axes, "kernel_size"), per_axis(module.stride, axes, "stride")
    others = (getattr(module, "divisor_override", None), getattr(module, "return_indices", False))
    plain = not module.ceil_mode and module.padding in (0, (0,) * axes) and others == (None, False)
    if not plain or len(shape) != axes + 1 or getattr(module, "dilation", 1) not in (1, (1,) * axes):
        raise UnsupportedLayerError(module, "pools are proven in balls without padding, dilation and other divisors")
    means = isinstance(module, (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d))
    return ball.MeanPool(kernel, stride) if means else ball.MaxPool(kernel, stride)


@register_ball(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
def _adaptive_pool(module: Any, shape: Shape) -> ball.Layer:
    wanted, axes = module.output_size, axes_of(module)
    sizes = (wanted,) * axes if wanted is None or isinstance(wanted, int) else tuple(wanted)
    pairs = list(
        zip(shape[1:], (n if out is None else out for n, out in zip(shape[1:], sizes, strict=True)), strict=True)
    )
    if any(n % out for n, out in pairs):
        raise UnsupportedLayerError(module, "adaptive pools are proven in balls where windows are all alike")
    kernel = tuple(n // out for n, out in pairs)
    return ball.MeanPool(kernel, kernel)


@register_ball(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(module: nn.BatchNorm2d, shape: Shape) -> ball.Layer:
    if module.running_var is None or module.running_mean is None:
        raise UnsupportedLayerError(module, "it has no running statistics: it divides each image by its own deviation")
    variance = _array(module.running_var)
    weight = np.ones_like(variance) if module.weight is None else _array(module.weight)
    bias = np.zeros_like(variance) if module.bias is None else _array(module.bias)
    return ball.BatchNorm(_array(module.running_mean), variance, module.eps, weight, bias)


@register_ball(Normalize)
def _normalize(module: Normalize, shape: Shape) -> ball.Layer:
    if max(module.mean.dim(), module.std.dim()) > 1:
        raise UnsupportedLayerError(module, "its mean and std must have one number a channel")
    if max(module.std.numel(), module.mean.numel()) > 1:
        _on_channels(module, shape)
    return ball.Normalisation(_array(module.mean).reshape(-1), _array(module.std).reshape(-1))


@register_ball(MaxMin)
def _max_min(module: MaxMin, shape: Shape) -> ball.Layer:
    return ball.MaxMin(_axis(module, shape))


@register_ball(GroupSort)
def _group_sort(module: GroupSort, shape: Shape) -> ball.Layer:
    return ball.SortedGroups(module.group_size, _axis(module, shape))


@register_ball(Householder)
def _householder(module: Householder, shape: Shape) -> ball.Layer:
    _on_channels(module, shape)
    if module.theta.shape[1:] != (shape[0] // 2,):
        raise UnsupportedLayerError(module, f"its angles have the shape {tuple(module.theta.shape)}")
    return ball.Fold(_array(module.theta))


def _axis(module: Any, shape: Shape) -> int:
    axis = int(module.dim % (len(shape) + 1))
    if axis == 0:
        raise UnsupportedLayerError(module, f"it acts on axis {module.dim}, that of the batch")
    return axis


def _on_channels(module: Any, shape: Shape) -> None:
    if _axis(module, shape) != 1:
        reason = f"it acts on axis {module.dim}, and the proof in balls knows it on channels only, axis 1"
        raise UnsupportedLayerError(module, reason)


@register_ball(nn.ReLU)
def _relu(module: nn.ReLU, shape: Shape) -> ball.Layer:
    return ball.Rectifier()


@register_ball(nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
def _reshaped(module: nn.Module, shape: Shape) -> ball.Layer:
    made = output_shape(module, shape)
    return ball.Rearrangement(lambda x: x.reshape(len(x), *made))


@register_ball(InvertibleDownsample)
def _downsample(module: InvertibleDownsample, shape: Shape) -> ball.Layer:
    stride = (module.stride,) * (len(shape) - 1) if isinstance(module.stride, int) else module.stride
    return ball.Rearrangement(lambda x: unshuffled(x, stride))


@register_ball(nn.ZeroPad2d)
def _zero_pad(module: nn.ZeroPad2d, shape: Shape) -> ball.Layer:
    left, right, top, bottom = module.padding
    if min(module.padding) < 0:
        raise UnsupportedLayerError(module, "it cuts pixels off: pad by 0 or more")

    def padded(x: Integers) -> Integers:
        return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))

    return ball.Rearrangement(padded)
