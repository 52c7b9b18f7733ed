"""Layers as ONNX operators on images whose batch comes last: (pixels, channels, batch), or (features, batch).

A layer with one matrix for each frequency multiplies pixels first, then channels, then pixels again. With the batch in
front, the images must be transposed number by number before and after each of the three products, and onnxruntime takes
longer for that than for the products themselves. With the batch last there is nothing to transpose::

    (pixels, c n) -> transform -> (frequencies, 2 c, n) -> matrices -> (frequencies, 2 o, n) -> back -> (pixels, o n)

and downsampling moves whole rows of a batch.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeVar

from torch import nn

from skewconv.export import plain_layers as plain
from skewconv.export.onnx_graph import OnnxGraph
from skewconv.export.onnx_layers import Shape, Writer, as_array

Layer = TypeVar("Layer")


def batch_last_runs(layers: Sequence[tuple[Layer, nn.Module]]) -> list[tuple[bool, list[tuple[Layer, nn.Module]]]]:
    """Consecutive layers, and whether they are written with the batch last: all can be, and one of them gains by it.

    Args:
        layers: in their order, each with whatever belongs to it.
    """
    runs = [(able, list(run)) for able, run in groupby(layers, lambda layer: _is_able(layer[1]))]
    return [(able and any(isinstance(module, plain.Spectral) for _, module in run), run) for able, run in runs]


def _is_able(module: nn.Module) -> bool:
    partly_flat = isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1)
    return type(module) in BATCH_LAST_WRITERS and not partly_flat


def batch_to_the_end(graph: OnnxGraph, x: str, shape: Shape) -> str:
    """(batch, c, h, w) -> (h w, c, batch); (batch, features) -> (features, batch)."""
    columns = graph.transpose(graph.reshape(x, -1, math.prod(shape)), 1, 0)
    if len(shape) == 1:
        return columns
    return graph.transpose(graph.reshape(columns, shape[0], math.prod(shape[1:]), -1), 1, 0, 2)


def batch_to_the_front(graph: OnnxGraph, x: str, shape: Shape) -> str:
    """The way back."""
    columns = x if len(shape) == 1 else graph.reshape(graph.transpose(x, 1, 0, 2), math.prod(shape), -1)
    return graph.reshape(graph.transpose(columns, 1, 0), -1, *shape)


def _channel_axis(shape: Shape) -> int:
    return 0 if len(shape) == 1 else 1


def _column(graph: OnnxGraph, values: Any, name: str) -> str:
    return graph.tensor(as_array(values).reshape(-1, 1), name)


def _identity(graph: OnnxGraph, module: nn.Module, x: str, given: Shape, made: Shape) -> str:
    return x


def _flatten(graph: OnnxGraph, module: nn.Flatten, x: str, given: Shape, made: Shape) -> str:
    return x if len(given) == 1 else graph.reshape(graph.transpose(x, 1, 0, 2), *made, -1)


def _relu(graph: OnnxGraph, module: nn.ReLU, x: str, given: Shape, made: Shape) -> str:
    return graph.node("Relu", x)


def _normalize(graph: OnnxGraph, module: plain.Normalize, x: str, given: Shape, made: Shape) -> str:
    shifted = graph.node("Sub", x, _column(graph, module.mean, "mean"))
    return graph.node("Div", shifted, _column(graph, module.std, "std"))


def _linear(graph: OnnxGraph, module: nn.Linear, x: str, given: Shape, made: Shape) -> str:
    inputs = [graph.weight(as_array(module.weight), "matrix"), x]
    return graph.node("Gemm", *inputs, *([] if module.bias is None else [_column(graph, module.bias, "bias")]))


def _downsample(graph: OnnxGraph, module: Any, x: str, given: Shape, made: Shape) -> str:
    (h, w), channels = made[1:], given[0]
    a, b = given[1] // h, given[2] // w
    blocks = graph.reshape(x, h, a, w, b, channels, -1)
    return graph.reshape(graph.transpose(blocks, 0, 2, 4, 1, 3, 5), h * w, made[0], -1)


def _halves(graph: OnnxGraph, x: str, shape: Shape) -> tuple[str, str]:
    half, axis = shape[0] // 2, _channel_axis(shape)
    return graph.cut(x, 0, half, axis), graph.cut(x, half, 2 * half, axis)


def _max_min(graph: OnnxGraph, module: plain.MaxMin, x: str, given: Shape, made: Shape) -> str:
    halves = _halves(graph, x, given)
    return graph.node("Concat", graph.node("Max", *halves), graph.node("Min", *halves), axis=_channel_axis(given))


def _householder(graph: OnnxGraph, module: plain.Householder, x: str, given: Shape, made: Shape) -> str:
    a, b = _halves(graph, x, given)
    for sine, cosine in zip(module.sine, module.cosine, strict=True):
        s, c = (_column(graph, wave, "fold") for wave in (sine, cosine))
        a, b = graph.folded(a, b, s, c)
    return graph.node("Concat", a, b, axis=_channel_axis(given))


def _spectral(graph: OnnxGraph, module: plain.Spectral, x: str, given: Shape, made: Shape) -> str:
    frequencies, pixels = module.forward_table.shape[0] // 2, module.forward_table.shape[1]
    blocks, groups = len(module.weight), module.groups
    inputs, outputs = module.weight.shape[1] // 2, module.weight.shape[2] // 2
    table = graph.tensor(as_array(module.forward_table), "transform")
    waves = graph.node("MatMul", table, graph.reshape(x, pixels, -1))
    if groups > 1:
        waves = graph.transpose(graph.reshape(waves, frequencies, 2, groups, inputs, -1), 0, 2, 1, 3, 4)
    matrices = graph.weight(as_array(module.weight).transpose(0, 2, 1), "matrices")
    products = graph.node("MatMul", matrices, graph.reshape(waves, blocks, 2 * inputs, -1))
    if groups > 1:
        products = graph.transpose(graph.reshape(products, frequencies, groups, 2, outputs, -1), 0, 2, 1, 3, 4)
    table = graph.tensor(as_array(module.inverse_table), "transform")
    image = graph.node("MatMul", table, graph.reshape(products, 2 * frequencies, -1))
    return graph.node("Add", graph.reshape(image, pixels, groups * outputs, -1), _column(graph, module.bias, "bias"))


#: layers that keep the batch last between two that gain by it
BATCH_LAST_WRITERS: dict[type[nn.Module], Writer] = {
    nn.Identity: _identity,
    nn.Dropout: _identity,
    nn.Dropout2d: _identity,
    nn.Flatten: _flatten,
    nn.ReLU: _relu,
    nn.Linear: _linear,
    nn.PixelUnshuffle: _downsample,
    plain.Normalize: _normalize,
    plain.Downsample: _downsample,
    plain.MaxMin: _max_min,
    plain.Householder: _householder,
    plain.Spectral: _spectral,
}
