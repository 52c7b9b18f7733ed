"""Plain layers as standard ONNX operators: a graph that is written node by node, and one function a type.

Between layers with one matrix for each frequency the batch comes last, (pixels, channels, batch) or (features, batch)::

    (pixels, c n) -> transform -> (frequencies, 2 c, n) -> matrices -> (frequencies, 2 o, n) -> back -> (pixels, o n)

With the batch in front, the images would be transposed number by number before and after each of the three products,
which takes onnxruntime longer than the products themselves.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.export import plain
from skewconv.extras import optional
from skewconv.nn.module_tools import UnsupportedLayerError
from skewconv.ops.fourier import count_of_real_frequencies

Shape: TypeAlias = tuple[int, ...]


class OnnxGraph:
    """Nodes and stored tensors, in the order in which they were written.

    With ``half``, large tensors that float16 can hold are stored so, and cast to float32 in the graph.
    """

    def __init__(self, *, half: bool = False) -> None:
        self.onnx = optional("onnx", "onnx", "export")
        self.half = half
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        self._names: dict[bytes, str] = {}
        self._count = 0

    def tensor(self, value: Any, name: str = "constant") -> str:
        """The name of a stored tensor; one with the same content is stored once."""
        array = np.ascontiguousarray(value.detach().cpu().numpy()) if isinstance(value, Tensor) else np.asarray(value)
        key = f"{array.dtype}{array.shape}".encode() + array.tobytes()
        if key not in self._names:
            self._names[key] = self._label(name)
            self.stored.append(self.onnx.numpy_helper.from_array(array, self._names[key]))
        return self._names[key]

    def weight(self, value: Tensor, name: str) -> str:
        """The name of a float32 tensor, stored in float16 where that was asked for and loses nothing."""
        short = plain.shortened(value, self.half)
        stored = self.tensor(short, name)
        return stored if short.dtype == value.dtype else self.cast(stored, "FLOAT")

    def integers(self, *values: int) -> str:
        return self.tensor(np.array(values, dtype=np.int64), "integers")

    def number(self, value: float) -> str:
        return self.tensor(np.float32(value), "number")

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add an operator of the standard domain; the name of its first output."""
        name = output or self._label(operator.lower())
        # The places that TopK gives beside the values are not read.
        names = [name, f"{name}_places"] if operator == "TopK" else [name]
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), names, name=name, **attributes))
        return name

    def cast(self, x: str, kind: str) -> str:
        return self.node("Cast", x, to=getattr(self.onnx.TensorProto, kind))

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.integers(*shape))

    def transpose(self, x: str, *order: int) -> str:
        return self.node("Transpose", x, perm=list(order))

    def cut(self, x: str, start: int, stop: int, axis: int) -> str:
        return self.node("Slice", x, *(self.integers(i) for i in (start, stop, axis)))

    def padded_channels(self, x: str, missing: int) -> str:
        """(n, c, h, w) with this many channels of zeros after the others."""
        return x if missing == 0 else self.node("Pad", x, self.integers(0, 0, 0, 0, 0, missing, 0, 0))

    def least(self, x: str) -> str:
        """The minimum over axis 1, which is lost."""
        return self.node("ReduceMin", x, axes=[1], keepdims=0)

    def _label(self, name: str) -> str:
        self._count += 1
        return f"{name}_{self._count}"


class Layout(NamedTuple):
    """The shapes of one input and one output of a layer, and whether the batch comes last."""

    given: Shape
    made: Shape
    batch_last: bool = False

    @property
    def channel_axis(self) -> int:
        return 0 if self.batch_last and len(self.given) == 1 else 1

    def by_channel(self, values: Tensor) -> Tensor:
        """One value for each channel, in a shape that an operator repeats over pixels and batch."""
        return values.reshape(-1, *(1,) * (1 if self.batch_last else len(self.given) - 1))


#: (graph, module, name of its input, layout) -> name of its output
Writer: TypeAlias = Callable[[OnnxGraph, Any, str, Layout], str]
#: the function of each plain layer; sums and radii are written by :mod:`skewconv.export.onnx_target`
WRITERS: dict[type[nn.Module], Writer] = {}
#: those that can be written with the batch last; the others need it in front
BATCH_LAST: set[type[nn.Module]] = set()


def _writes(*kinds: type[nn.Module], batch_last: bool = False) -> Callable[[Writer], Writer]:
    def enter(writer: Writer) -> Writer:
        WRITERS.update(dict.fromkeys(kinds, writer))
        BATCH_LAST.update(kinds if batch_last else ())
        return writer

    return enter


@_writes(nn.Identity, nn.Dropout, nn.Dropout2d, batch_last=True)
def _identity(graph: OnnxGraph, module: nn.Module, x: str, at: Layout) -> str:
    return x


@_writes(nn.Flatten, batch_last=True)
@_writes(nn.Unflatten)
def _reshape(graph: OnnxGraph, module: nn.Module, x: str, at: Layout) -> str:
    if at.given == at.made:
        return x
    return graph.reshape(graph.transpose(x, 1, 0, 2), *at.made, -1) if at.batch_last else graph.reshape(x, -1, *at.made)


@_writes(nn.ReLU, batch_last=True)
def _relu(graph: OnnxGraph, module: nn.Module, x: str, at: Layout) -> str:
    return graph.node("Relu", x)


@_writes(plain.Normalize, batch_last=True)
def _normalize(graph: OnnxGraph, module: plain.Normalize, x: str, at: Layout) -> str:
    shifted = graph.node("Sub", x, graph.tensor(at.by_channel(module.mean), "mean"))
    return graph.node("Div", shifted, graph.tensor(at.by_channel(module.std), "std"))


@_writes(nn.BatchNorm1d, nn.BatchNorm2d)
def _batch_norm(graph: OnnxGraph, module: nn.BatchNorm1d | nn.BatchNorm2d, x: str, at: Layout) -> str:
    ones = torch.ones(module.num_features)
    scale, shift = (ones, 0 * ones) if module.weight is None else (module.weight, module.bias)
    parts = (scale, shift, module.running_mean, module.running_var)
    return graph.node("BatchNormalization", x, *(graph.tensor(part, "norm") for part in parts), epsilon=module.eps)


@_writes(nn.Linear, batch_last=True)
def _linear(graph: OnnxGraph, module: nn.Linear, x: str, at: Layout) -> str:
    matrix = graph.weight(module.weight, "matrix")
    bias = [] if module.bias is None else [graph.tensor(at.by_channel(module.bias), "bias")]
    if at.batch_last:
        return graph.node("Gemm", matrix, x, *bias)
    return graph.node("Gemm", x, matrix, *bias, transB=1)


@_writes(nn.Conv2d)
def _convolution(graph: OnnxGraph, module: nn.Conv2d, x: str, at: Layout) -> str:
    if module.padding_mode not in ("zeros", "circular") or isinstance(module.padding, str):
        raise UnsupportedLayerError(module, f"its padding is {module.padding!r}, {module.padding_mode!r}")
    return _convolve(graph, module, x, module.weight, module.bias, at, module.padding, strides=list(module.stride))


def _convolve(
    graph: OnnxGraph, module: Any, x: str, weight: Tensor, bias: Tensor | None, at: Layout, padding: Any, **options: Any
) -> str:
    """One convolution with the dilation and groups of a module; a circular border is cut off and joined on."""
    if module.padding_mode == "circular":
        for axis, (border, size) in enumerate(zip(padding, at.given[1:], strict=True), 2):
            if border:
                before, after = graph.cut(x, size - border, size, axis), graph.cut(x, 0, border, axis)
                x = graph.node("Concat", before, x, after, axis=axis)
        padding = (0, 0)
    inputs = [graph.weight(weight, "filter"), *([] if bias is None else [graph.tensor(bias, "bias")])]
    options |= {"dilations": list(module.dilation), "group": module.groups}
    return graph.node("Conv", x, *inputs, pads=[*padding, *padding], **options)


@_writes(plain.Chain)
def _chain(graph: OnnxGraph, module: plain.Chain, x: str, at: Layout) -> str:
    weight, (inputs, outputs), coefficients = module.weight, (at.given[0], module.outputs), module.coefficients
    padding = [d * (k // 2) for d, k in zip(module.dilation, weight.shape[2:], strict=True)]

    def term(power: int, count: int) -> str:
        fitted = graph.cut(x, 0, count, 1) if count < inputs else graph.padded_channels(x, count - inputs)
        return graph.node("Mul", fitted, graph.number(coefficients[power]))

    y, columns = term(len(coefficients) - 1, inputs), inputs
    for power in range(len(coefficients) - 2, -1, -1):
        rows, bias = (len(weight), None) if power else (outputs, module.bias)
        product = _convolve(graph, module, y, weight[:rows, : columns // module.groups], bias, at, padding)
        y, columns = graph.node("Add", product, term(power, rows)), rows
    if len(coefficients) > 1:
        return y
    return graph.node("Add", term(0, outputs), graph.tensor(at.by_channel(module.bias), "bias"))


@_writes(nn.PixelUnshuffle, plain.Downsample, batch_last=True)
def _downsample(graph: OnnxGraph, module: nn.Module, x: str, at: Layout) -> str:
    (channels, *size), (made, h, w) = at.given, at.made
    a, b = size[0] // h, size[1] // w
    if at.batch_last:
        blocks = graph.reshape(x, h, a, w, b, channels, -1)
        return graph.reshape(graph.transpose(blocks, 0, 2, 4, 1, 3, 5), h * w, made, -1)
    blocks = graph.reshape(x, -1, channels, h, a, w, b)
    return graph.reshape(graph.transpose(blocks, 0, 1, 3, 5, 2, 4), -1, *at.made)


@_writes(nn.PixelShuffle)
def _upsample(graph: OnnxGraph, module: nn.PixelShuffle, x: str, at: Layout) -> str:
    factor, (channels, *_), (_, h, w) = module.upscale_factor, at.made, at.given
    blocks = graph.reshape(x, -1, channels, factor, factor, h, w)
    return graph.reshape(graph.transpose(blocks, 0, 1, 4, 2, 5, 3), -1, *at.made)


def _halves(graph: OnnxGraph, x: str, at: Layout) -> tuple[str, str]:
    half, axis = at.given[0] // 2, at.channel_axis
    return graph.cut(x, 0, half, axis), graph.cut(x, half, 2 * half, axis)


@_writes(plain.MaxMin, batch_last=True)
def _max_min(graph: OnnxGraph, module: plain.MaxMin, x: str, at: Layout) -> str:
    halves = _halves(graph, x, at)
    return graph.node("Concat", graph.node("Max", *halves), graph.node("Min", *halves), axis=at.channel_axis)


@_writes(plain.GroupSort)
def _group_sort(graph: OnnxGraph, module: plain.GroupSort, x: str, at: Layout) -> str:
    groups = graph.reshape(x, -1, at.given[0] // module.size, module.size, *at.given[1:])
    if module.size == 2:
        pair = [graph.cut(groups, i, i + 1, 2) for i in (0, 1)]
        joined = graph.node("Concat", graph.node("Min", *pair), graph.node("Max", *pair), axis=2)
    else:
        joined = graph.node("TopK", groups, graph.integers(module.size), axis=2, largest=0, sorted=1)
    return graph.reshape(joined, -1, *at.made)


@_writes(plain.Householder, batch_last=True)
def _householder(graph: OnnxGraph, module: plain.Householder, x: str, at: Layout) -> str:
    a, b = _halves(graph, x, at)
    for waves in zip(module.sine, module.cosine, strict=True):
        sine, cosine = (graph.tensor(at.by_channel(wave), "fold") for wave in waves)
        side = graph.node("Sub", graph.node("Mul", a, sine), graph.node("Mul", b, cosine))
        twice = graph.node("Mul", graph.node("Min", side, graph.number(0.0)), graph.number(2.0))
        a = graph.node("Sub", a, graph.node("Mul", twice, sine))
        b = graph.node("Add", b, graph.node("Mul", twice, cosine))
    return graph.node("Concat", a, b, axis=at.channel_axis)


@_writes(plain.Spectral, batch_last=True)
def _spectral(graph: OnnxGraph, module: plain.Spectral, x: str, at: Layout) -> str:
    """The steps of ``CircularConvolution.convolve``."""

    def turned(table: Tensor, values: str) -> str:
        return graph.node("MatMul", graph.tensor(table, "transform"), values)

    def joined(*parts: str, axis: int = 0) -> str:
        return graph.node("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]

    height, width, groups = len(module.end_table), len(module.row_table), module.groups
    ends, inside, pixels = count_of_real_frequencies((width,)), (width - 1) // 2, height * width
    alone, inner = len(module.real_weight) // groups, 2 * inside * height
    reals, paired = alone // ends, pixels - alone
    if width == 1:
        values = graph.reshape(x, 1, height, -1)
    else:
        values = graph.transpose(turned(module.row_table, graph.reshape(x, height, width, -1)), 1, 0, 2)
    outer = turned(module.end_table, graph.cut(values, 0, ends, 0) if inside else values)
    pairs = []
    if inside:
        columns = graph.reshape(graph.cut(values, ends, width, 0), inside, 2 * height, -1)
        pairs = [graph.reshape(turned(module.inner_table, columns), inner, -1)]
    if paired > inner:
        pairs.append(graph.reshape(graph.cut(outer, reals, height, 1), paired - inner, -1))
        outer = graph.cut(outer, 0, reals, 1)
    real = _moved(graph, module.real_weight, groups, graph.reshape(outer, alone, -1), 1)
    parts = [graph.reshape(real, ends, reals, -1)]
    moved = _moved(graph, module.weight, groups, joined(*pairs), 2) if pairs else ""
    if paired > inner:
        outer = graph.cut(moved, inner, paired, 0) if inner else moved
        parts.append(graph.reshape(outer, ends, height - reals, -1))
    values = turned(module.end_table.t(), joined(*parts, axis=1))
    if inside:
        columns = graph.reshape(graph.cut(moved, 0, inner, 0), inside, 2 * height, -1)
        columns = graph.reshape(turned(module.inner_table.t(), columns), 2 * inside, height, -1)
        values = joined(values, columns)
    if width > 1:
        values = turned(module.row_table.t(), graph.transpose(values, 1, 0, 2))
    bias = graph.tensor(at.by_channel(module.bias), "bias")
    return graph.node("Add", graph.reshape(values, pixels, groups * module.real_weight.shape[2], -1), bias)


def _moved(graph: OnnxGraph, weight: Tensor, groups: int, waves: str, parts: int) -> str:
    """One product a frequency: (frequencies * parts, channels * batch), real parts alone or with imaginary ones."""
    inputs, outputs, frequencies = weight.shape[1] // parts, weight.shape[2] // parts, len(weight) // groups
    if groups > 1:
        waves = graph.transpose(graph.reshape(waves, frequencies, parts, groups, inputs, -1), 0, 2, 1, 3, 4)
    matrices = graph.weight(weight.transpose(1, 2), "matrices")
    products = graph.node("MatMul", matrices, graph.reshape(waves, len(weight), parts * inputs, -1))
    if groups > 1:
        products = graph.transpose(graph.reshape(products, frequencies, groups, parts, outputs, -1), 0, 2, 1, 3, 4)
    return graph.reshape(products, frequencies * parts, -1)


@_writes(plain.ResidualStep)
def _residual_step(graph: OnnxGraph, module: plain.ResidualStep, x: str, at: Layout) -> str:
    there, back, size = module.there, module.back, at.given[1:]
    wide, hidden = (there.in_channels, *size), (there.out_channels, *size)
    x = graph.padded_channels(x, wide[0] - at.given[0])
    active = graph.node("Relu", _convolution(graph, there, x, Layout(wide, hidden)))
    scaled = graph.node("Mul", active, graph.tensor(module.step, "step"))
    y = graph.node("Sub", x, _convolution(graph, back, scaled, Layout(hidden, wide)))
    return y if at.made == wide else graph.cut(y, 0, at.made[0], 1)


@_writes(nn.AdaptiveAvgPool2d)
def _global_mean(graph: OnnxGraph, module: nn.AdaptiveAvgPool2d, x: str, at: Layout) -> str:
    if at.made[1:] != (1, 1):
        raise UnsupportedLayerError(module, f"it must make one pixel, and makes {at.made[1:]}")
    return graph.node("GlobalAveragePool", x)


@_writes(nn.AvgPool2d, nn.MaxPool2d)
def _pool(graph: OnnxGraph, module: Any, x: str, at: Layout) -> str:
    def pair(value: Any) -> list[int]:
        return list(value) if isinstance(value, tuple) else [value, value]

    window: dict[str, Any] = {
        "kernel_shape": pair(module.kernel_size),
        "strides": pair(module.stride),
        "pads": 2 * pair(module.padding),
    }
    if isinstance(module, nn.MaxPool2d):
        return graph.node("MaxPool", x, dilations=pair(module.dilation), ceil_mode=int(module.ceil_mode), **window)
    if module.divisor_override is not None or module.ceil_mode:
        raise UnsupportedLayerError(module, "its windows must all have one divisor, their size")
    return graph.node("AveragePool", x, count_include_pad=int(module.count_include_pad), **window)
