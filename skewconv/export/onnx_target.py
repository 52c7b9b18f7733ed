"""ONNX files of standard operators, run by onnxruntime: layers and radii."""

import hashlib
import json
import math
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.choices import DEFAULT_OPSET
from skewconv.errors import ArgumentError, ExportError
from skewconv.export import plain
from skewconv.export.onnx_layers import BATCH_LAST, WRITERS, Layout, OnnxGraph, Shape
from skewconv.export.plain import Network
from skewconv.export.target import ExportedFile, FileOptions, Target
from skewconv.extras import optional
from skewconv.nn.module_tools import UnsupportedLayerError, named, recording_shapes
from skewconv.nn.primitives import ResidualSum

#: every operator used has its present form from this version on, or is written in its older form before
OLDEST_OPSET = 13
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


def onnx_model(network: Network, metadata: Mapping[str, str], options: FileOptions) -> Any:
    """The network as a checked model: ``images`` to ``logits`` and, if it has one, ``radius``."""
    graph, modules = OnnxGraph(options.opset, half=options.half), dict(network.layers.named_modules())
    with recording_shapes(modules) as met, torch.no_grad():
        network.layers(torch.zeros(1, *network.input_shape))
    layouts = {modules[name]: Layout(*calls[0]) for name, calls in met.items()}
    graph.node("Identity", _write(graph, network.layers, "images", layouts), output="logits")
    outputs = {"logits": layouts[network.layers].made}
    if network.radius is not None:
        assert isinstance(network.radius, plain.Radius)
        _write_radius(graph, network.radius, math.prod(network.input_shape))
        outputs["radius"] = ()
    helper, floats = graph.onnx.helper, graph.onnx.TensorProto.FLOAT
    images = helper.make_tensor_value_info("images", floats, ["batch", *network.input_shape])
    results = [helper.make_tensor_value_info(name, floats, ["batch", *shape]) for name, shape in outputs.items()]
    made = helper.make_graph(graph.nodes, "skewconv", [images], results, graph.stored)
    opsets = [helper.make_opsetid("", options.opset)]
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
        optional("onnxruntime", "onnxruntime", "export")
        opset, newest = options.opset, optional("onnx", "onnx", "export").defs.onnx_opset_version()
        if type(opset) is not int or not OLDEST_OPSET <= opset <= newest:
            reason = "too old" if isinstance(opset, int) and opset < OLDEST_OPSET else "not known here"
            raise ArgumentError(
                f"opset {opset!r} is {reason}: choose from {OLDEST_OPSET} to {newest}; runtimes read every opset up to "
                f"their own, and {DEFAULT_OPSET} is the default"
            )

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
