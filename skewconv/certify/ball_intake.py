"""Primitives for the proof in balls: from the tensors of the model's float64 copy, one function a type.

Behind these functions nothing knows of PyTorch. A module of another type is refused by name.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import singledispatch
from typing import Any, TypeVar

import numpy as np
from flint import arb
from torch import Tensor, nn

from skewconv.ball import layers
from skewconv.ball.exact import Floats
from skewconv.ball.layers import Frame, Layer
from skewconv.certify.certifier import refuse_another_function
from skewconv.checks import per_axis
from skewconv.errors import NotFiniteError
from skewconv.nn import GroupSort, Householder, InvertibleDownsample, MaxMin, Normalize
from skewconv.nn.bounds import Shape, axes_of, output_shape
from skewconv.nn.lowering import chain, lower
from skewconv.nn.module_tools import UnsupportedLayerError, ask, first_tensor, register
from skewconv.nn.primitives import Convolution, Dense, ResidualStep, ResidualSum, SkewExponential, Spectral

RuleT = TypeVar("RuleT", bound=Callable[..., Any])


@singledispatch
def ball_layer(module: nn.Module, shape: Shape) -> Layer:
    """A primitive in float64 for inputs of this shape with bounds proven in balls: the table of rules."""
    raise UnsupportedLayerError(module, "it cannot be proven in ball arithmetic; check it in float64")


def register_ball(*kinds: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Decorate a rule (module, input_shape) -> a :class:`skewconv.ball.layers.Layer`, for primitives of these types."""
    return register(ball_layer, kinds)


def described(model: nn.Module, shape: Shape) -> Iterator[tuple[str, str, Layer]]:
    """(name, type, layer) of each primitive of a float64 model on the CPU, one at a time: filters are large."""
    links = chain(lower(model, shape))

    def run(x: Tensor) -> Tensor:
        for _, module in links:
            x = module(x)
        return x

    refuse_another_function(model, run, shape, first_tensor(model).device)
    for name, module in links:
        yield name, type(module).__name__, ask(ball_layer, module, shape, path=name)
        shape = output_shape(module, shape)


def _chained(module: nn.Module, shape: Shape, path: str) -> Layer:
    found = []
    for name, child in chain(module, path):
        found.append(ask(ball_layer, child, shape, path=name))
        shape = output_shape(child, shape)
    return layers.chained(found)


def _array(value: Tensor) -> Floats:
    array = np.ascontiguousarray(value.detach().cpu().double().numpy())
    if not np.isfinite(array).all():
        raise NotFiniteError(f"a tensor of shape {array.shape} is not finite; are the weights?")
    return array


def _bias(module: Any) -> Floats | None:
    return None if module.bias is None else _array(module.bias)


def _axis(module: Any, shape: Shape) -> int:
    axis = int(module.dim % (len(shape) + 1))
    if axis == 0:
        raise UnsupportedLayerError(module, f"it acts on axis {module.dim}, that of the batch")
    return axis


def _frame(module: nn.Module, size: Sequence[int], padding_mode: str, *moves: Any) -> Frame:
    if padding_mode not in ("zeros", "circular"):
        raise UnsupportedLayerError(module, f"padding_mode={padding_mode!r} repeats pixels at the border")
    return Frame(size, padding_mode == "circular", *moves)


register_ball(nn.Linear)(lambda module, shape: layers.linear(_array(module.weight), _bias(module)))
register_ball(Dense)(lambda module, shape: layers.dense(_array(module.weight), module.output_shape, _bias(module)))
register_ball(MaxMin)(lambda module, shape: layers.max_min(_axis(module, shape)))
register_ball(GroupSort)(lambda module, shape: layers.group_sort(module.group_size, _axis(module, shape)))
register_ball(nn.ReLU)(lambda module, shape: layers.rearrangement(lambda x: np.maximum(x, 0)))


@register_ball(SkewExponential)
def _skew_exponential(module: SkewExponential, shape: Shape) -> Layer:
    p, g = module.polynomial, module.geometry
    if module.weight.is_complex():
        raise UnsupportedLayerError(module, "complex layers cannot be proven in ball arithmetic")
    weight = _array(module.weight)
    blocks = weight.reshape(g.groups, -1, *weight.shape[1:])
    if not np.array_equal(blocks, -np.flip(blocks.swapaxes(1, 2), tuple(range(3, blocks.ndim)))):
        raise UnsupportedLayerError(module, "its filter is not skew-symmetric")
    frame = _frame(module, module.image_size, g.padding_mode, module.stride, g.dilation, g.groups)
    outputs, polynomial = module.read_channels if module.upsamples else module.kept_channels, (p.norm_bound, p.series)
    given = (weight, p.coefficients, *polynomial, outputs, _bias(module), frame)
    return layers.skew_exponential(*given, adjoint=module.upsamples)


@register_ball(Convolution)
def _convolution(module: Convolution, shape: Shape) -> Layer:
    weight, ones = _array(module.weight), (1,) * len(module.stride)
    pads = layers.same_pads(weight.shape[2:], ones)
    frame = _frame(module, module.output_shape[1:], module.padding_mode, ones, ones)
    return layers.chained([_downsample(module, shape), layers.convolution(weight, _bias(module), pads, frame)])


@register_ball(Spectral)
def _spectral(module: Spectral, shape: Shape) -> Layer:
    alone, pairs = _array(module.real_weight), _array(module.weight)
    tables = [_array(table) for table in module.tables if len(table)]
    given = (alone, pairs, tables, _bias(module), module.groups, module.stride)
    return layers.spectral(*given, upsamples=module.upsamples)


@register_ball(ResidualStep)
def _residual_step(module: ResidualStep, shape: Shape) -> Layer:
    scale = _array(module.scale).reshape(-1)
    if scale.min() < 0:
        raise UnsupportedLayerError(module, f"its scale has the entry {scale.min():g}, and none may be below 0")
    outputs, *size = module.output_shape
    frame = _frame(module, size, module.padding_mode, (module.stride,) * 2, (1, 1))
    return layers.residual_step(_array(module.weight), scale, _bias(module), outputs, frame)


@register_ball(ResidualSum)
def _residual_sum(module: ResidualSum, shape: Shape) -> Layer:
    after = output_shape(module.activation, shape)
    shortcut = None if module.shortcut is None else _chained(module.shortcut, after, "shortcut")
    active, residual = _chained(module.activation, shape, "activation"), _chained(module.residual, after, "residual")
    return layers.residual_sum(active, residual, shortcut)


@register_ball(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv(module: nn.Conv2d, shape: Shape) -> Layer:
    reversed_pads = module._reversed_padding_repeated_twice
    pads = list(zip(reversed_pads[::2], reversed_pads[1::2], strict=True))[::-1]
    room = [d * (k - 1) for d, k in zip(module.dilation, module.weight.shape[2:], strict=True)]
    frame = _frame(module, shape[1:], module.padding_mode, module.stride, module.dilation, module.groups)
    if frame.circular and any(a + b > n for (a, b), n in zip(pads, room, strict=True)):
        raise UnsupportedLayerError(module, "its circular padding is wider than the kernel, so outputs are repeated")
    return layers.convolution(_array(module.weight), _bias(module), pads, frame)


@register_ball(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
def _pool(module: Any, shape: Shape) -> Layer:
    axes = axes_of(module)
    kernel, stride = per_axis(module.kernel_size, axes, "kernel_size"), per_axis(module.stride, axes, "stride")
    others = (getattr(module, "divisor_override", None), getattr(module, "return_indices", False))
    plain = not module.ceil_mode and module.padding in (0, (0,) * axes) and others == (None, False)
    if not plain or len(shape) != axes + 1 or getattr(module, "dilation", 1) not in (1, (1,) * axes):
        raise UnsupportedLayerError(module, "pools are proven in balls without padding, dilation and other divisors")
    means = isinstance(module, (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d))
    return layers.pool(kernel, stride, means=means)


@register_ball(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
def _adaptive_pool(module: Any, shape: Shape) -> Layer:
    made = output_shape(module, shape)
    if len(shape) != axes_of(module) + 1 or any(n % out for n, out in zip(shape[1:], made[1:], strict=True)):
        raise UnsupportedLayerError(module, "adaptive pools are proven in balls where windows are all alike")
    kernel = tuple(n // out for n, out in zip(shape[1:], made[1:], strict=True))
    return layers.pool(kernel, kernel, means=True)


@register_ball(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(module: nn.BatchNorm2d, shape: Shape) -> Layer:
    if module.running_var is None or module.running_mean is None:
        raise UnsupportedLayerError(module, "it has no running statistics: it divides each image by its own deviation")
    roots = [(arb(float(v)) + arb(module.eps)).sqrt() for v in _array(module.running_var)]
    weight = np.ones(len(roots)) if module.weight is None else _array(module.weight)
    factors = [arb(float(w)) / root for w, root in zip(weight, roots, strict=True)]
    return layers.affine_channels(_array(module.running_mean), factors, _bias(module))


@register_ball(Normalize)
def _normalize(module: Normalize, shape: Shape) -> Layer:
    if max(module.mean.dim(), module.std.dim()) > 1:
        raise UnsupportedLayerError(module, "its mean and std must have one number a channel")
    if max(module.std.numel(), module.mean.numel()) > 1:
        _on_channels(module, shape)
    factors = [1 / arb(float(std)) for std in _array(module.std).reshape(-1)]
    return layers.affine_channels(_array(module.mean).reshape(-1), factors)


@register_ball(Householder)
def _householder(module: Householder, shape: Shape) -> Layer:
    _on_channels(module, shape)
    if module.theta.shape[1:] != (shape[0] // 2,):
        raise UnsupportedLayerError(module, f"its angles have the shape {tuple(module.theta.shape)}")
    return layers.householder(_array(module.theta))


def _on_channels(module: Any, shape: Shape) -> None:
    if _axis(module, shape) != 1:
        reason = f"it acts on axis {module.dim}, and the proof in balls knows it on channels only, axis 1"
        raise UnsupportedLayerError(module, reason)


@register_ball(nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
def _reshaped(module: nn.Module, shape: Shape) -> Layer:
    made = output_shape(module, shape)
    return layers.rearrangement(lambda x: x.reshape(len(x), *made))


@register_ball(InvertibleDownsample)
def _downsample(module: InvertibleDownsample | Convolution, shape: Shape) -> Layer:
    stride = per_axis(module.stride, len(shape) - 1, "stride")
    return layers.rearrangement(lambda x: layers.unshuffled(x, stride))


@register_ball(nn.ZeroPad2d)
def _zero_pad(module: nn.ZeroPad2d, shape: Shape) -> Layer:
    left, right, top, bottom = module.padding
    if min(module.padding) < 0:
        raise UnsupportedLayerError(module, "it cuts pixels off: pad by 0 or more")
    return layers.rearrangement(lambda x: np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))))
