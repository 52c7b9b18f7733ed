"""The plain form of a lowered model: the same map in modules that need PyTorch only, one function a primitive.

The text of the classes is copied as it stands into the Python file of a model: they know nothing of the library.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import singledispatch
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skewconv.nn import basic_layers, primitives
from skewconv.nn.module_tools import UnsupportedLayerError, ask, register
from skewconv.nn.primitives import CircularConvolution, ResidualSum, linear_module, with_tensors
from skewconv.ops.convolution import adjoint_filter, odd_filter

RuleT = TypeVar("RuleT", bound=Callable[..., Any])


class Normalize(nn.Module):
    """(x - mean) / std, channel by channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Downsample(nn.Module):
    """Blocks of pixels (a, b) become channels, in the order of ``nn.PixelUnshuffle``, which takes squares only."""

    def __init__(self, stride: tuple[int, int]) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        c, h, w = x.shape[1:]
        a, b = self.stride
        blocks = x.reshape(-1, c, h // a, a, w // b, b)
        return blocks.permute(0, 1, 3, 5, 2, 4).reshape(-1, c * a * b, h // a, w // b)


class MaxMin(nn.Module):
    """The maxima of the two halves of the channels, then their minima."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], 1)


class GroupSort(nn.Module):
    """Each group of consecutive channels sorted, smallest first."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, self.size)).sort(2).values.flatten(1, 2)


class Householder(nn.Module):
    """The plane of each pair of channels (one of each half) folded along lines; sine and cosine are (folds, c / 2)."""

    sine: Tensor
    cosine: Tensor

    def __init__(self, sine: Tensor, cosine: Tensor) -> None:
        super().__init__()
        self.register_buffer("sine", sine)
        self.register_buffer("cosine", cosine)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        shape = (1, -1, *(1,) * (x.dim() - 2))
        for sine, cosine in zip(self.sine, self.cosine, strict=True):
            s, c = sine.view(shape), cosine.view(shape)
            twice = 2 * torch.clamp(a * s - b * c, max=0)
            a, b = a - twice * s, b + twice * c
        return torch.cat([a, b], 1)


class Chain(nn.Module):
    """p(J) x = c_0 x + J (c_1 x + J (c_2 x + ...)) for the convolution J with one filter; zero padding stays exact.

    The filter has as many channels as the larger of input and output: missing ones are zero, surplus ones are cut off.
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        coefficients: tuple[float, ...],
        outputs: int,
        padding_mode: str = "zeros",
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.coefficients, self.outputs = coefficients, outputs
        self.padding_mode, self.dilation, self.groups = padding_mode, dilation, groups
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.coefficients[-1] * x
        for power in range(len(self.coefficients) - 2, -1, -1):
            rows = self.outputs if power == 0 else len(self.weight)
            product = self.convolve(y, self.weight[:rows, : y.shape[1] // self.groups])
            y = product + self.coefficients[power] * self.fit(x, rows)
        return self.fit(y, self.outputs) + self.bias.view(-1, 1, 1)

    def convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        """One convolution that keeps the size of the image."""
        high, wide = (d * (k // 2) for d, k in zip(self.dilation, weight.shape[2:], strict=True))
        if self.padding_mode == "circular":
            x, high, wide = F.pad(x, (wide, wide, high, high), mode="circular"), 0, 0
        return F.conv2d(x, weight, padding=(high, wide), dilation=self.dilation, groups=self.groups)

    def fit(self, x: Tensor, channels: int) -> Tensor:
        """The image with this many channels."""
        if x.shape[1] < channels:
            return F.pad(x, (0, 0, 0, 0, 0, channels - x.shape[1]))
        return x[:, :channels]


class Spectral(CircularConvolution):
    """A circular convolution and a bias."""

    bias: Tensor

    def __init__(
        self,
        real_weight: Tensor,
        weight: Tensor,
        row_table: Tensor,
        end_table: Tensor,
        inner_table: Tensor,
        bias: Tensor,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.groups = groups
        tables = {"row_table": row_table, "end_table": end_table, "inner_table": inner_table}
        for name, tensor in {"real_weight": real_weight, "weight": weight, **tables, "bias": bias}.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolve(x) + self.bias.view(-1, 1, 1)


class ResidualStep(nn.Module):
    """x - V (s relu(W x)) with two convolutions, channels filled up with zeros before and cut off after."""

    step: Tensor

    def __init__(self, there: nn.Conv2d, back: nn.Conv2d, step: Tensor, outputs: int) -> None:
        super().__init__()
        self.there, self.back, self.outputs = there, back, outputs
        self.register_buffer("step", step)  # (hidden, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 0, 0, 0, self.there.in_channels - x.shape[1]))
        return (x - self.back(self.step * torch.relu(self.there(x))))[:, : self.outputs]


class Radius(nn.Module):
    """Within which l2 distance of an image no point has another class: (images, logits) -> (n,).

    min_i (f_t - f_i - subtracted) / bound_ti for the predicted class t: ``subtracted`` covers what the logits may be
    off by at the image and at the point it moves to, ``bound_ti`` the Lipschitz constant of f_t - f_i. It is 0 where
    nothing is proven, and for images outside of [0, 1].
    """

    pair_bounds: Tensor
    subtracted: Tensor

    def __init__(self, pair_bounds: Tensor, subtracted: Tensor) -> None:
        super().__init__()
        self.register_buffer("pair_bounds", pair_bounds)  # (classes, classes)
        self.register_buffer("subtracted", subtracted)  # ()

    def forward(self, images: Tensor, logits: Tensor) -> Tensor:
        predicted = logits.argmax(1)
        itself = F.one_hot(predicted, logits.shape[1]).bool()
        margins = logits.gather(1, predicted[:, None]) - logits - self.subtracted
        radius = (margins / self.pair_bounds[predicted]).masked_fill(itself, float("inf")).amin(1)
        pixels = images.flatten(1)
        inside = (pixels.amin(1) >= 0) & (pixels.amax(1) <= 1)
        # A logit that is infinite overflowed.
        finite = (logits - logits == 0).all(1)
        return torch.where(inside & finite & (radius > 0), radius, 0.0)


class Network(nn.Module):
    """Images in [0, 1] of one size to (logits, radius), or to logits alone."""

    def __init__(self, layers: nn.Module, radius: nn.Module | None, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers, self.radius, self.input_shape = layers, radius, input_shape

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if tuple(images.shape[1:]) != self.input_shape:
            raise ValueError(f"images must have shape (n, {self.input_shape}), got {tuple(images.shape)}")
        logits = self.layers(images)
        return logits if self.radius is None else (logits, self.radius(images, logits))


@singledispatch
def plain_form(module: nn.Module) -> nn.Module:
    if type(module).__module__.startswith("torch.nn."):
        return copy.deepcopy(module)
    raise UnsupportedLayerError(module, "nothing says how to write it without this library, so it cannot be exported")


def plain_of(module: nn.Module, path: str = "") -> nn.Module:
    """The plain form by the rule of the module's type, or a refusal by name."""
    made: nn.Module = ask(plain_form, module, path=path)
    return made


def register_plain(*kinds: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Decorate a rule (module) -> the same map in torch.nn modules, for primitives of these types."""
    return register(plain_form, kinds)


def flat_layers(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers that run one after another, each with its name; a sum is one of them."""
    if not isinstance(module, nn.Sequential):
        yield path, module
        return
    for name, child in module.named_children():
        yield from flat_layers(child, f"{path}.{name}" if path else name)


def shortened(tensor: Tensor, half: bool) -> Tensor:
    """The tensor as a file holds it: in float16 where that is asked for and loses nothing."""
    short = tensor.detach().half() if half and tensor.is_floating_point() and tensor.numel() >= 64 else tensor
    return short if torch.equal(short.to(tensor.dtype), tensor) else tensor


@register_plain(nn.Sequential)
def _sequential(module: nn.Sequential) -> nn.Sequential:
    # A layer that stands in two places has two names, of which named_children tells one.
    children = module._modules.items()
    return nn.Sequential(OrderedDict((name, plain_of(child, name)) for name, child in children if child is not None))


@register_plain(ResidualSum)
def _residual_sum(module: ResidualSum) -> nn.Module:
    return ResidualSum(**{name: plain_of(child, name) for name, child in module.named_children()})


@register_plain(basic_layers.Normalize, basic_layers.MaxMin, basic_layers.GroupSort, basic_layers.Householder)
def _on_channels(module: Any) -> nn.Module:
    # Counted from the end, the third axis is that of the channels of an image, which is what networks have here.
    if module.dim not in (1, -3):
        raise UnsupportedLayerError(module, f"its channels must be on axis 1 of a batch, and dim is {module.dim}")
    match module:
        case basic_layers.Normalize():
            return Normalize(*(value.detach().clone().reshape(-1, 1, 1) for value in (module.mean, module.std)))
        case basic_layers.GroupSort(group_size=size):
            if size is None:
                raise UnsupportedLayerError(module, "a full sort has groups of a size that is not known")
            return GroupSort(size)
        case basic_layers.Householder():
            half = module.theta.detach().double() / 2
            return Householder(*(wave.to(module.theta.dtype) for wave in (half.sin(), half.cos())))
    return MaxMin()


@register_plain(basic_layers.InvertibleDownsample)
def _downsample(module: basic_layers.InvertibleDownsample) -> nn.Module:
    return _downsampled(module, (module.stride,) * 2 if isinstance(module.stride, int) else module.stride)


@register_plain(primitives.Dense)
def _dense(module: primitives.Dense) -> nn.Module:
    pixels = torch.Size(module.output_shape[1:]).numel()
    bias = None if module.bias is None else module.bias.repeat_interleave(pixels)
    return nn.Sequential(nn.Flatten(), linear_module(module.weight, bias), nn.Unflatten(1, module.output_shape))


@register_plain(primitives.Convolution)
def _convolution(module: primitives.Convolution) -> nn.Module:
    convolution = _conv_module(module.weight, module.bias, module.padding_mode, module.output_shape[1:])
    return _downsampled(module, module.stride, convolution)


@register_plain(primitives.Spectral)
def _spectral(module: primitives.Spectral) -> nn.Module:
    bias = _bias_between(module, module.groups * module.weight.shape[2] // 2)
    return _folded(module, Spectral(module.real_weight, module.weight, *module.tables, bias, module.groups))


@register_plain(primitives.SkewExponential)
def _skew_exponential(module: primitives.SkewExponential) -> nn.Module:
    geometry, weight = module.geometry, module.weight
    outputs = module.read_channels if module.upsamples else module.kept_channels
    if weight.is_complex() or geometry.axes != 2:
        raise UnsupportedLayerError(module, "its images must be real and have two axes")
    if geometry.groups > 1 and {module.read_channels, module.kept_channels} != {len(weight)}:
        raise UnsupportedLayerError(module, "groups must have as many channels before as after, and no stride")
    dilation = (geometry.dilation[0], geometry.dilation[1])
    if geometry.padding_mode == "circular":
        weight, dilation = once_around(weight, dilation, module.image_size)
    # Of J, or of -J.
    sign, bias = -1 if module.upsamples else 1, _bias_between(module, outputs)
    powers = tuple(float(c * sign**k) for k, c in enumerate(module.polynomial.in_powers()))
    chain = Chain(weight.contiguous(), bias, powers, outputs, geometry.padding_mode, dilation, geometry.groups)
    return _folded(module, chain)


@register_plain(primitives.ResidualStep)
def _residual_step(module: primitives.ResidualStep) -> nn.Module:
    size = module.output_shape[1:]
    there = _conv_module(odd_filter(module.weight), module.bias, module.padding_mode, size)
    back = _conv_module(adjoint_filter(module.weight), None, module.padding_mode, size)
    step = ResidualStep(there, back, (2 * module.scale).reshape(-1, 1, 1), module.output_shape[0])
    return _downsampled(module, (module.stride, module.stride), step)


def _conv_module(weight: Tensor, bias: Tensor | None, padding_mode: str, size: Sequence[int]) -> nn.Conv2d:
    """A convolution that keeps the size (h, w) of images, with this filter (outputs, inputs, k, k) of odd sizes."""
    if padding_mode == "circular":
        weight, _ = once_around(weight, (1, 1), size)
    kernel = (weight.shape[2], weight.shape[3])
    options: dict[str, Any] = {"padding": (kernel[0] // 2, kernel[1] // 2), "padding_mode": padding_mode}
    new = nn.Conv2d(weight.shape[1], weight.shape[0], kernel, bias=bias is not None, device="meta", **options)
    return with_tensors(new, weight, bias)


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
        raise UnsupportedLayerError(
            module, f"only images with two axes of one stride can be upsampled, not {tuple(stride)}"
        )
    shift = [] if bias is None else [Normalize(-bias.view(-1, 1, 1), torch.ones_like(bias).view(-1, 1, 1))]
    return nn.Sequential(between, nn.PixelShuffle(stride[0]), *shift)


def _downsampled(module: nn.Module, stride: Sequence[int], after: nn.Module | None = None) -> nn.Module:
    """A map behind the downsampling, or one of the two alone."""
    if after is not None and max(stride) == 1:
        return after
    if len(stride) != 2:
        reason = f"only images with two axes can be downsampled there, and the stride is {stride}"
        raise UnsupportedLayerError(module, reason)
    a, b = stride
    down = nn.PixelUnshuffle(a) if a == b else Downsample((a, b))
    return down if after is None else nn.Sequential(down, after)
