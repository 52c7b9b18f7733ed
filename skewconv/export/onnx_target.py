"""ONNX files, run by onnxruntime."""

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
from skewconv.export.onnx_layers import (
    BATCH_LAST_WRITERS,
    WRITERS,
    Layout,
    OnnxGraph,
    batch_to_the_end,
    batch_to_the_front,
)
from skewconv.export.plain import flat_layers
from skewconv.export.plain_layers import Network, Radius, Spectral
from skewconv.export.target import ExportedFile, FileOptions, Target
from skewconv.extras import optional
from skewconv.nn.module_tools import recording_shapes
from skewconv.nn.primitives import ResidualSum
from skewconv.nn.tables import UnsupportedLayerError

#: every operator used has its present form from this version on, or is written in its older form before
OLDEST_OPSET = 13
# Protobuf's own limit for one file.
_LARGEST_BYTES = 2**31 - 1
# The property of a model that holds the hash of its graph.
_GRAPH_HASH = "graph_sha256"


class OnnxTarget(Target):
    """One file of standard operators."""

    name: ClassVar[str] = "onnx"
    suffix: ClassVar[str] = ".onnx"

    def check(self, options: FileOptions) -> None:
        """Both packages must be there, and know the opset."""
        optional("onnxruntime", "onnxruntime", "export")
        opset, newest = options.opset, optional("onnx", "onnx", "export").defs.onnx_opset_version()
        if type(opset) is not int or not OLDEST_OPSET <= opset <= newest:
            reason = "too old" if isinstance(opset, int) and opset < OLDEST_OPSET else "not known here"
            raise ArgumentError(
                f"opset {opset!r} is {reason}: choose from {OLDEST_OPSET} to {newest}; runtimes read every opset up to "
                f"their own, and {DEFAULT_OPSET} is the default"
            )

    def write(self, network: Network, metadata: Mapping[str, Any], path: Path, options: FileOptions) -> list[Path]:
        """The model, its metadata as JSON values by name."""
        properties = {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
        model = onnx_model(network, properties, options.opset, half=options.half)
        if model.ByteSize() > _LARGEST_BYTES:
            raise ExportError(f"the model has {model.ByteSize():,} bytes, and an ONNX file at most {_LARGEST_BYTES:,}")
        path.write_bytes(model.SerializeToString())
        return [path]

    def read(self, path: Path) -> ExportedFile:
        """A session of onnxruntime on the CPU, of a file whose content is the one that was written."""
        library = optional("onnxruntime", "onnxruntime", "export")
        options = library.SessionOptions()
        options.log_severity_level = 3
        try:
            session = library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            # onnxruntime has a class of errors for each of its own codes, and none above them but this one.
            reason = str(error).strip().splitlines()[0]
            text = f"{path} is not an ONNX file that can be run ({reason}): export the model again"
            raise ExportError(text) from error
        properties = session.get_modelmeta().custom_metadata_map
        if properties.get(_GRAPH_HASH) != _graph_hash(optional("onnx", "onnx", "export").load(path)):
            raise ExportError(f"{path} is damaged, or was changed after its export: export the model again")
        names = [output.name for output in session.get_outputs()]

        def run(images: Tensor) -> tuple[Tensor, Tensor | None]:
            found = dict(zip(names, map(torch.from_numpy, session.run(names, {"images": images.numpy()})), strict=True))
            return found["logits"], found.get("radius")

        return ExportedFile(path, {name: _decoded(value) for name, value in properties.items()}, run)


def _graph_hash(model: Any) -> str:
    """SHA-256 of the operators and tensors of a model, by which a damaged file is known."""
    return hashlib.sha256(model.graph.SerializeToString(deterministic=True)).hexdigest()


def _decoded(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


Layouts: TypeAlias = Mapping[nn.Module, Layout]


def onnx_model(network: Network, metadata: Mapping[str, str], opset: int, *, half: bool) -> Any:
    """The network as a checked model: input ``images``, outputs ``logits`` and, if it has one, ``radius``."""
    graph, modules = OnnxGraph(opset, half=half), dict(network.layers.named_modules())
    with recording_shapes(modules) as met, torch.no_grad():
        network.layers(torch.zeros(1, *network.input_shape))
    layouts = {modules[name]: Layout(*calls[0]) for name, calls in met.items()}
    graph.node("Identity", _write(graph, network.layers, "images", layouts), output="logits")
    outputs = {"logits": layouts[network.layers].made}
    if network.radius is not None:
        assert isinstance(network.radius, Radius)
        _write_radius(graph, network.radius, math.prod(network.input_shape))
        outputs["radius"] = ()
    helper, floats = graph.onnx.helper, graph.onnx.TensorProto.FLOAT
    images = helper.make_tensor_value_info("images", floats, ["batch", *network.input_shape])
    results = [helper.make_tensor_value_info(name, floats, ["batch", *shape]) for name, shape in outputs.items()]
    made = helper.make_graph(graph.nodes, "skewconv", [images], results, graph.stored)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(made, opset_imports=opsets, producer_name="skewconv")
    # The oldest format that may hold these operators, so that older runtimes read it.
    model.ir_version = helper.find_min_ir_version_for(opsets)
    helper.set_model_props(model, {**metadata, _GRAPH_HASH: _graph_hash(model)})
    graph.onnx.checker.check_model(model, full_check=True)
    return model


def _write(graph: OnnxGraph, module: nn.Module, x: str, layouts: Layouts, path: str = "") -> str:
    """Add a module, with all that it holds, to the graph; the name of its output."""
    for able, layers in groupby(flat_layers(module, path), lambda layer: _can_be_batch_last(layer[1])):
        run = list(layers)
        if able and any(isinstance(layer, Spectral) for _, layer in run):
            x = batch_to_the_end(graph, x, layouts[run[0][1]].given)
            for _, layer in run:
                x = BATCH_LAST_WRITERS[type(layer)](graph, layer, x, layouts[layer]._replace(batch_last=True))
            x = batch_to_the_front(graph, x, layouts[run[-1][1]].made)
            continue
        for name, layer in run:
            write = _write_sum if isinstance(layer, ResidualSum) else _write_layer
            x = write(graph, layer, x, layouts, name)
    return x


def _can_be_batch_last(module: nn.Module) -> bool:
    partly_flat = isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1)
    return type(module) in BATCH_LAST_WRITERS and not partly_flat


def _write_sum(graph: OnnxGraph, module: Any, x: str, layouts: Layouts, path: str) -> str:
    active = _write(graph, module.activation, x, layouts, f"{path}.activation")
    residual = _write(graph, module.residual, active, layouts, f"{path}.residual")
    shortcut = module.shortcut
    beside = x if shortcut is None else _write(graph, shortcut, active, layouts, f"{path}.shortcut")
    return graph.node("Add", residual, beside)


def _write_layer(graph: OnnxGraph, module: nn.Module, x: str, layouts: Layouts, path: str) -> str:
    """A type that has no function is refused by name."""
    try:
        if type(module) not in WRITERS:
            known = ", ".join(sorted(kind.__name__ for kind in WRITERS))
            reason = f"ONNX has a form here for {known}; --to torch-export takes the others"
            raise UnsupportedLayerError(module, reason)
        return WRITERS[type(module)](graph, module, x, layouts[module])
    except UnsupportedLayerError as error:
        raise error.below(path) from None


def _write_radius(graph: OnnxGraph, radius: Radius, pixels: int) -> None:
    """See :class:`skewconv.export.plain_layers.Radius`."""
    bounds = radius.pair_bounds
    itself = np.where(np.eye(len(bounds), dtype=bool), np.float32(np.inf), np.float32(0))
    predicted = graph.node("ArgMax", "logits", axis=1, keepdims=0)
    largest = graph.node("ArgMax", "logits", axis=1, keepdims=1)
    gaps = graph.node("Sub", graph.node("GatherElements", "logits", largest, axis=1), "logits")
    margins = graph.node("Sub", gaps, graph.number(float(radius.subtracted)))
    radii = graph.node("Div", margins, graph.node("Gather", graph.tensor(bounds, "pair_bounds"), predicted))
    others = graph.node("Add", radii, graph.node("Gather", graph.tensor(itself, "itself"), predicted))
    least = graph.reduce("ReduceMin", others, 1)
    flat = graph.reshape("images", -1, pixels)
    zero, one = graph.number(0.0), graph.number(1.0)
    # Entry by entry, since a minimum or maximum may pass over a NaN.
    inside = graph.node("And", graph.node("GreaterOrEqual", flat, zero), graph.node("LessOrEqual", flat, one))
    finite = graph.node("Equal", graph.node("Sub", "logits", "logits"), zero)
    sound = graph.node("Greater", least, zero)
    for each in (inside, finite):
        counted = graph.reduce("ReduceMin", graph.node("Cast", each, to=graph.onnx.TensorProto.FLOAT), 1)
        sound = graph.node("And", sound, graph.node("Equal", counted, one))
    graph.node("Where", sound, least, zero, output="radius")
