"""Plain layers as ONNX operators: one function a type, and nothing but standard operators."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor, nn

from skewconv.export import plain_layers as plain
from skewconv.export.onnx_graph import OnnxGraph
from skewconv.nn.tables import UnsupportedLayerError

Shape: TypeAlias = tuple[int, ...]
#: (graph, module, name of its input, shape of one input, shape of one output) -> name of its output
Writer: TypeAlias = Callable[[OnnxGraph, Any, str, Shape, Shape], str]


def _identity(graph: OnnxGraph, module: nn.Module, x: str, given: Shape, made: Shape) -> str:
    return x


def _reshape(graph: OnnxGraph, module: nn.Module, x: str, given: Shape, made: Shape) -> str:
    return x if given == made else graph.reshape(x, -1, *made)


def _relu(graph: OnnxGraph, module: nn.Module, x: str, given: Shape, made: Shape) -> str:
    return graph.node("Relu", x)


def _normalize(graph: OnnxGraph, module: plain.Normalize, x: str, given: Shape, made: Shape) -> str:
    shifted = graph.node("Sub", x, graph.tensor(as_array(module.mean), "mean"))
    return graph.node("Div", shifted, graph.tensor(as_array(module.std), "std"))


def _batch_norm(graph: OnnxGraph, module: nn.BatchNorm2d, x: str, given: Shape, made: Shape) -> str:
    assert module.running_mean is not None
    assert module.running_var is not None
    ones = np.ones(module.num_features, dtype=np.float32)
    scale = ones if module.weight is None else as_array(module.weight)
    shift = 0 * ones if module.bias is None else as_array(module.bias)
    parts = (scale, shift, as_array(module.running_mean), as_array(module.running_var))
    return graph.node("BatchNormalization", x, *(graph.tensor(part, "norm") for part in parts), epsilon=module.eps)


def _linear(graph: OnnxGraph, module: nn.Linear, x: str, given: Shape, made: Shape) -> str:
    inputs = [x, graph.weight(as_array(module.weight), "matrix")]
    if module.bias is not None:
        inputs.append(graph.tensor(as_array(module.bias), "bias"))
    return graph.node("Gemm", *inputs, transB=1)


def _convolution(graph: OnnxGraph, module: nn.Conv2d, x: str, given: Shape, made: Shape) -> str:
    if module.padding_mode not in ("zeros", "circular") or isinstance(module.padding, str):
        raise UnsupportedLayerError(module, f"its padding is {module.padding!r}, {module.padding_mode!r}")
    options: dict[str, Any] = {"stride": module.stride, "dilation": module.dilation, "groups": module.groups}
    weight, bias = graph.weight(as_array(module.weight), "filter"), module.bias
    padding = (int(module.padding[0]), int(module.padding[1]))
    return convolve(graph, x, weight, given, padding, bias, circular=module.padding_mode == "circular", **options)


def convolve(
    graph: OnnxGraph,
    x: str,
    weight: str,
    given: Shape,
    padding: tuple[int, int],
    bias: Tensor | None = None,
    *,
    circular: bool = False,
    stride: Any = (1, 1),
    dilation: Any = (1, 1),
    groups: int = 1,
) -> str:
    """One convolution; a circular border is attached by cutting and joining."""
    if circular:
        for axis, (border, size) in enumerate(zip(padding, given[1:], strict=True), 2):
            if border:
                before, after = graph.cut(x, size - border, size, axis), graph.cut(x, 0, border, axis)
                x = graph.node("Concat", before, x, after, axis=axis)
        padding = (0, 0)
    inputs = [x, weight] if bias is None else [x, weight, graph.tensor(as_array(bias), "bias")]
    options: dict[str, Any] = {"strides": list(stride), "dilations": list(dilation), "group": groups}
    return graph.node("Conv", *inputs, pads=[*padding, *padding], **options)


def _chain(graph: OnnxGraph, module: plain.Chain, x: str, given: Shape, made: Shape) -> str:
    weight, (inputs, outputs) = as_array(module.weight), module.channels
    channels, groups, coefficients = len(weight), module.groups, module.coefficients
    reach = tuple(d * (k // 2) for d, k in zip(module.dilation, weight.shape[2:], strict=True))
    options: dict[str, Any] = {
        "circular": module.padding_mode == "circular",
        "dilation": module.dilation,
        "groups": groups,
    }

    def term(power: int, count: int) -> str:
        fitted = graph.cut(x, 0, count, 1) if count < inputs else graph.padded_channels(x, count - inputs)
        return graph.node("Mul", fitted, graph.number(coefficients[power]))

    y, columns = term(len(coefficients) - 1, inputs), inputs
    for power in range(len(coefficients) - 2, -1, -1):
        rows = outputs if power == 0 else channels
        used = graph.weight(weight[:rows, : columns // groups], "filter")
        bias = module.bias if power == 0 else None
        product = convolve(graph, y, used, given, (reach[0], reach[1]), bias, **options)
        y, columns = graph.node("Add", product, term(power, rows)), rows
    if len(coefficients) > 1:
        return y
    return graph.node("Add", term(0, outputs), graph.tensor(as_array(module.bias).reshape(-1, 1, 1), "bias"))


def _downsample(graph: OnnxGraph, module: Any, x: str, given: Shape, made: Shape) -> str:
    a, b = given[1] // made[1], given[2] // made[2]
    blocks = graph.reshape(x, -1, given[0], made[1], a, made[2], b)
    return graph.reshape(graph.transpose(blocks, 0, 1, 3, 5, 2, 4), -1, *made)


def _upsample(graph: OnnxGraph, module: nn.PixelShuffle, x: str, given: Shape, made: Shape) -> str:
    a, b = made[1] // given[1], made[2] // given[2]
    blocks = graph.reshape(x, -1, made[0], a, b, given[1], given[2])
    return graph.reshape(graph.transpose(blocks, 0, 1, 4, 2, 5, 3), -1, *made)


def _halves(graph: OnnxGraph, x: str, channels: int) -> tuple[str, str]:
    return graph.cut(x, 0, channels // 2, 1), graph.cut(x, channels // 2, channels, 1)


def _max_min(graph: OnnxGraph, module: plain.MaxMin, x: str, given: Shape, made: Shape) -> str:
    halves = _halves(graph, x, given[0])
    return graph.node("Concat", graph.node("Max", *halves), graph.node("Min", *halves), axis=1)


def _group_sort(graph: OnnxGraph, module: plain.GroupSort, x: str, given: Shape, made: Shape) -> str:
    groups = graph.reshape(x, -1, given[0] // module.size, module.size, *given[1:])
    if module.size == 2:
        pair = [graph.cut(groups, i, i + 1, 2) for i in (0, 1)]
        joined = graph.node("Concat", graph.node("Min", *pair), graph.node("Max", *pair), axis=2)
        return graph.reshape(joined, -1, *made)
    helper, values, places = graph.onnx.helper, f"{x}_sorted", f"{x}_places"
    inputs, options = [groups, graph.integers(module.size)], {"axis": 2, "largest": 0, "sorted": 1}
    graph.nodes.append(helper.make_node("TopK", inputs, [values, places], name=values, **options))
    return graph.reshape(values, -1, *made)


def _householder(graph: OnnxGraph, module: plain.Householder, x: str, given: Shape, made: Shape) -> str:
    a, b = _halves(graph, x, given[0])
    for sine, cosine in zip(module.sine, module.cosine, strict=True):
        s, c = (graph.tensor(as_array(wave).reshape(-1, *(1,) * (len(given) - 1)), "fold") for wave in (sine, cosine))
        a, b = graph.folded(a, b, s, c)
    return graph.node("Concat", a, b, axis=1)


def _residual_step(graph: OnnxGraph, module: plain.ResidualStep, x: str, given: Shape, made: Shape) -> str:
    channels, hidden = module.there.in_channels, module.there.out_channels
    wide = (channels, *given[1:])
    x = graph.padded_channels(x, channels - given[0])
    active = graph.node("Relu", _convolution(graph, module.there, x, wide, (hidden, *given[1:])))
    scaled = graph.node("Mul", active, graph.tensor(as_array(module.step), "step"))
    y = graph.node("Sub", x, _convolution(graph, module.back, scaled, (hidden, *given[1:]), wide))
    return y if made == wide else graph.cut(y, 0, made[0], 1)


def _global_mean(graph: OnnxGraph, module: nn.AdaptiveAvgPool2d, x: str, given: Shape, made: Shape) -> str:
    if made[1:] != (1, 1):
        raise UnsupportedLayerError(module, f"it must make one pixel, and makes {made[1:]}")
    return graph.node("GlobalAveragePool", x)


def _window(module: Any) -> dict[str, Any]:
    pairs = [value if isinstance(value, tuple) else (value, value) for value in (module.kernel_size, module.stride)]
    padding = module.padding if isinstance(module.padding, tuple) else (module.padding, module.padding)
    options = {"kernel_shape": list(pairs[0]), "strides": list(pairs[1]), "pads": [*padding, *padding]}
    return {**options, "ceil_mode": int(module.ceil_mode)}


def _mean_pool(graph: OnnxGraph, module: nn.AvgPool2d, x: str, given: Shape, made: Shape) -> str:
    if module.divisor_override is not None or module.ceil_mode:
        raise UnsupportedLayerError(module, "its windows must all have one divisor, their size")
    return graph.node("AveragePool", x, count_include_pad=int(module.count_include_pad), **_window(module))


def _max_pool(graph: OnnxGraph, module: nn.MaxPool2d, x: str, given: Shape, made: Shape) -> str:
    dilation = module.dilation if isinstance(module.dilation, tuple) else (module.dilation,) * 2
    return graph.node("MaxPool", x, dilations=list(dilation), **_window(module))


def as_array(tensor: Tensor) -> Any:
    """The numbers of a tensor, for a file."""
    return tensor.detach().cpu().numpy()


#: what each plain layer becomes; chains, sums and radii are written by :mod:`skewconv.export.onnx_target`, products
#: at frequencies by :mod:`skewconv.export.onnx_batch_last`
WRITERS: dict[type[nn.Module], Writer] = {
    nn.Identity: _identity,
    nn.Dropout: _identity,
    nn.Dropout2d: _identity,
    nn.Flatten: _reshape,
    nn.Unflatten: _reshape,
    nn.ReLU: _relu,
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.BatchNorm2d: _batch_norm,
    nn.PixelUnshuffle: _downsample,
    nn.PixelShuffle: _upsample,
    nn.AdaptiveAvgPool2d: _global_mean,
    nn.AvgPool2d: _mean_pool,
    nn.MaxPool2d: _max_pool,
    plain.Normalize: _normalize,
    plain.Downsample: _downsample,
    plain.MaxMin: _max_min,
    plain.GroupSort: _group_sort,
    plain.Householder: _householder,
    plain.Chain: _chain,
    plain.ResidualStep: _residual_step,
}
