"""ONNX files of standard operators, run by onnxruntime: layers, radii, and the resizing of pictures."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.errors import ExportError
from skewconv.export import plain
from skewconv.export.onnx_layers import BATCH_LAST, WRITERS, Layout, OnnxGraph, Shape
from skewconv.export.plain import Network
from skewconv.export.target import ExportedFile, FileOptions, Target
from skewconv.extras import optional
from skewconv.nn.module_tools import UnsupportedLayerError, named, recording_shapes
from skewconv.nn.primitives import ResidualSum

#: the version of ONNX's operators; runtimes read every version up to their own
OPSET = 17
# The property of a model that holds the hash of its graph.
_GRAPH_HASH = "graph_sha256"


Layouts: TypeAlias = Mapping[nn.Module, Layout]


def _write(graph: OnnxGraph, module: nn.Module, x: str, layouts: Layouts, path: str = "") -> str:
    """Add a module, with all that it holds, to the graph; the name of its output."""
    for able, layers in groupby(plain.flat_layers(module, path), lambda layer: _can_be_batch_last(layer[1])):
        run = list(layers)
        last = able and any(isinstance(layer, plain.Spectral) for _, layer in run)
        if last:
            x = _batch_to_the_end(graph, x, layouts[run[0][1]].given)
        for name, layer in run:
            if isinstance(layer, ResidualSum):
                active = _write(graph, layer.activation, x, layouts, f"{name}.activation")
                residual, shortcut = _write(graph, layer.residual, active, layouts, f"{name}.residual"), layer.shortcut
                beside = x if shortcut is None else _write(graph, shortcut, active, layouts, f"{name}.shortcut")
                x = graph.node("Add", residual, beside)
            else:
                x = _write_layer(graph, layer, x, layouts[layer]._replace(batch_last=last), name)
        if last:
            x = _batch_to_the_front(graph, x, layouts[run[-1][1]].made)
    return x


def _can_be_batch_last(module: nn.Module) -> bool:
    partly_flat = isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1)
    return type(module) in BATCH_LAST and not partly_flat


def _batch_to_the_end(graph: OnnxGraph, x: str, shape: Shape) -> str:
    """(batch, c, h, w) -> (h w, c, batch); (batch, features) -> (features, batch)."""
    columns = graph.transpose(graph.reshape(x, -1, math.prod(shape)), 1, 0)
    if len(shape) == 1:
        return columns
    return graph.transpose(graph.reshape(columns, shape[0], math.prod(shape[1:]), -1), 1, 0, 2)


def _batch_to_the_front(graph: OnnxGraph, x: str, shape: Shape) -> str:
    columns = x if len(shape) == 1 else graph.reshape(graph.transpose(x, 1, 0, 2), math.prod(shape), -1)
    return graph.reshape(graph.transpose(columns, 1, 0), -1, *shape)


def _write_layer(graph: OnnxGraph, module: nn.Module, x: str, at: Layout, path: str) -> str:
    if type(module) not in WRITERS:
        known = ", ".join(sorted(kind.__name__ for kind in WRITERS))
        reason = f"ONNX has a form here for {known}; --to torch-export takes the others"
        raise UnsupportedLayerError(module, reason, path)
    with named(path):
        return WRITERS[type(module)](graph, module, x, at)


def _write_radius(graph: OnnxGraph, radius: plain.Radius, pixels: int) -> None:
    """See :class:`skewconv.export.plain.Radius`."""
    bounds = radius.pair_bounds
    itself = np.where(np.eye(len(bounds), dtype=bool), np.float32(np.inf), np.float32(0))
    predicted = graph.node("ArgMax", "logits", axis=1, keepdims=0)
    largest = graph.node("ArgMax", "logits", axis=1, keepdims=1)
    gaps = graph.node("Sub", graph.node("GatherElements", "logits", largest, axis=1), "logits")
    margins = graph.node("Sub", gaps, graph.number(float(radius.subtracted)))
    radii = graph.node("Div", margins, graph.node("Gather", graph.tensor(bounds, "pair_bounds"), predicted))
    others = graph.node("Add", radii, graph.node("Gather", graph.tensor(itself, "itself"), predicted))
    least, flat = graph.least(others), graph.reshape("images", -1, pixels)
    zero, one = graph.number(0.0), graph.number(1.0)
    # Entry by entry, since a minimum or maximum may pass over a NaN.
    inside = graph.node("And", graph.node("GreaterOrEqual", flat, zero), graph.node("LessOrEqual", flat, one))
    finite = graph.node("Equal", graph.node("Sub", "logits", "logits"), zero)
    sound = graph.node("Greater", least, zero)
    for each in (inside, finite):
        sound = graph.node("And", sound, graph.node("Equal", graph.least(graph.cast(each, "FLOAT")), one))
    graph.node("Where", sound, least, zero, output="radius")


def _write_pictures(graph: OnnxGraph, shape: Shape) -> None:
    """``pictures`` (n, height, width, channels), uint8, of any size, to ``images`` (n, *shape), float32 in [0, 1].

    The same pixels as ``PIL.ImageOps.fit(picture, (width, height), BICUBIC)``, bit by bit. Pillow rounds its weights to
    multiples of 2^-22 and the image between its two passes to 8 bits; float64 holds all sums of such products exactly.
    """

    def number(value: Any) -> str:
        return value if isinstance(value, str) else graph.tensor(np.asarray(value, np.float64))

    def f(operator: str, *inputs: Any) -> str:
        return graph.node(operator, *map(number, inputs))

    sizes = graph.node("Shape", "pictures")
    lengths = [graph.cast(graph.node("Gather", sizes, graph.tensor(np.int64(axis))), "DOUBLE") for axis in (1, 2)]
    ratio = shape[2] / shape[1]
    rooms = f("Div", lengths[1], ratio), f("Mul", lengths[0], ratio)
    matrices = [_pillow_weights(graph, f, *each) for each in zip(lengths, rooms, shape[1:], strict=True)]
    factors = matrices[0], graph.transpose(matrices[1], 1, 0)
    x = graph.cast(graph.transpose("pictures", 0, 3, 1, 2), "DOUBLE")

    def branch(order: Sequence[int]) -> Any:
        """The passes along these axes, taken out of the graph as one of its own."""
        start, y = len(graph.nodes), x
        for axis in order:
            products = f("MatMul", factors[0], y) if axis == 0 else f("MatMul", y, factors[1])
            y = f("Clip", f("Floor", f("Mul", f("Add", products, 2.0**21), 2.0**-22)), 0, 255)
        graph.nodes, nodes = graph.nodes[:start], graph.nodes[start:]
        output = graph.onnx.helper.make_tensor_value_info(y, graph.onnx.TensorProto.DOUBLE, None)
        return graph.onnx.helper.make_graph(nodes, f"passes_{y}", [], [output])

    # Pillow begins with the height where it shrinks, by more than twice as many pixels as the width.
    shrinks = [f("Sub", length, size) for length, size in zip(lengths, shape[1:], strict=True)]
    tall = f("And", f("Greater", shrinks[0], 0), f("Greater", shrinks[0], f("Mul", shrinks[1], 2)))
    pixels = graph.node("If", tall, then_branch=branch((0, 1)), else_branch=branch((1, 0)))
    graph.node("Div", graph.cast(pixels, "FLOAT"), graph.number(255.0), output="images")


def _pillow_weights(graph: OnnxGraph, f: Callable[..., str], length: str, room: str, size: int) -> str:
    """(size, length), integers in float64: Pillow's bicubic weights along one axis, times 2^22.

    The part of the axis that is kept, in the middle, is as long as ``room``, or all of it.
    """
    kept = f("Min", length, room)
    before = f("Mul", f("Sub", length, kept), 0.5)
    # Pillow holds the two ends in float32.
    low, high = (graph.cast(end, "FLOAT") for end in (before, f("Add", before, kept)))
    scale = f("Div", graph.cast(graph.node("Sub", high, low), "DOUBLE"), size)
    wide = f("Max", scale, 1)
    centre = f("Add", graph.cast(low, "DOUBLE"), f("Mul", np.arange(size)[:, None] + 0.5, scale))
    places, support = f("Range", 0, length, 1), f("Mul", wide, 2)
    first = f("Floor", f("Add", f("Sub", centre, support), 0.5))
    last = f("Floor", f("Add", f("Add", centre, support), 0.5))
    d = f("Abs", f("Mul", f("Add", f("Sub", places, centre), 0.5), f("Div", 1, wide)))
    near = f("Add", f("Mul", f("Mul", f("Sub", f("Mul", d, 1.5), 2.5), d), d), 1)
    far = f("Mul", f("Sub", f("Mul", f("Add", f("Mul", f("Sub", d, 5), d), 8), d), 4), -0.5)
    curve = f("Where", f("Less", d, 1), near, f("Where", f("Less", d, 2), far, 0))
    inside = f("And", f("GreaterOrEqual", places, first), f("Less", places, last))
    weights = f("Where", inside, curve, 0)
    shares = f("Div", weights, graph.node("ReduceSum", weights, graph.integers(1)))
    return f("Mul", f("Sign", shares), f("Floor", f("Add", f("Mul", f("Abs", shares), 2.0**22), 0.5)))


def onnx_model(network: Network, metadata: Mapping[str, str], options: FileOptions) -> Any:
    """The network as a checked model: ``images`` or ``pictures`` to ``logits`` and, if it has one, ``radius``."""
    graph, modules = OnnxGraph(half=options.half), dict(network.layers.named_modules())
    with recording_shapes(modules) as met, torch.no_grad():
        network.layers(torch.zeros(1, *network.input_shape))
    layouts = {modules[name]: Layout(*calls[0]) for name, calls in met.items()}
    if options.preprocess:
        _write_pictures(graph, network.input_shape)
    graph.node("Identity", _write(graph, network.layers, "images", layouts), output="logits")
    outputs = {"logits": layouts[network.layers].made}
    if network.radius is not None:
        assert isinstance(network.radius, plain.Radius)
        _write_radius(graph, network.radius, math.prod(network.input_shape))
        outputs["radius"] = ()
    helper, floats = graph.onnx.helper, graph.onnx.TensorProto.FLOAT
    images = helper.make_tensor_value_info("images", floats, ["batch", *network.input_shape])
    if options.preprocess:
        size = ["batch", "height", "width", network.input_shape[0]]
        images = helper.make_tensor_value_info("pictures", graph.onnx.TensorProto.UINT8, size)
    results = [helper.make_tensor_value_info(name, floats, ["batch", *shape]) for name, shape in outputs.items()]
    made = helper.make_graph(graph.nodes, "skewconv", [images], results, graph.stored)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, opset_imports=opsets, producer_name="skewconv")
    # The oldest format that may hold these operators, so that older runtimes read it.
    model.ir_version = helper.find_min_ir_version_for(opsets)
    helper.set_model_props(model, {**metadata, _GRAPH_HASH: _graph_hash(model)})
    graph.onnx.checker.check_model(model, full_check=True)
    return model


def _graph_hash(model: Any) -> str:
    """SHA-256 of the operators and tensors of a model, by which a damaged file is known."""
    return hashlib.sha256(model.graph.SerializeToString(deterministic=True)).hexdigest()


class OnnxTarget(Target):
    """One file of standard operators."""

    name: ClassVar[str] = "onnx"
    suffix: ClassVar[str] = ".onnx"

    def check(self, options: FileOptions) -> None:
        for package in ("onnx", "onnxruntime"):
            optional(package, package, "export")

    def write(self, network: Network, metadata: Mapping[str, Any], path: Path, options: FileOptions) -> list[Path]:
        properties = {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
        model = onnx_model(network, properties, options)
        # Protobuf's own limit for one file.
        if model.ByteSize() >= 2**31:
            raise ExportError(f"the model has {model.ByteSize():,} bytes, and an ONNX file at most {2**31 - 1:,}")
        path.write_bytes(model.SerializeToString())
        return [path]

    def read(self, path: Path) -> ExportedFile:
        library = optional("onnxruntime", "onnxruntime", "export")
        options = library.SessionOptions()
        options.log_severity_level = 3
        try:
            session = library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            # onnxruntime has a class of errors for each of its own codes, and none above them but this one.
            reason = str(error).strip().splitlines()[0]
            raise ExportError(
                f"{path} is not an ONNX file that can be run ({reason}): export the model again"
            ) from error
        properties = session.get_modelmeta().custom_metadata_map
        if properties.get(_GRAPH_HASH) != _graph_hash(optional("onnx", "onnx", "export").load(path)):
            raise ExportError(f"{path} is damaged, or was changed after its export: export the model again")
        (given,), names = session.get_inputs(), [output.name for output in session.get_outputs()]

        def run(images: Tensor) -> tuple[Tensor, Tensor | None]:
            found = map(torch.from_numpy, session.run(names, {given.name: images.numpy()}))
            by_name = dict(zip(names, found, strict=True))
            return by_name["logits"], by_name.get("radius")

        return ExportedFile(path, {name: _decoded(value) for name, value in properties.items()}, run)


def _decoded(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
