"""ONNX files, run by onnxruntime."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.errors import ExportError
from skewconv.export.onnx_batch_last import (
    BATCH_LAST_WRITERS,
    batch_last_runs,
    batch_to_the_end,
    batch_to_the_front,
)
from skewconv.export.onnx_graph import GRAPH_HASH, OnnxGraph, check_opset, graph_hash
from skewconv.export.onnx_layers import WRITERS, Shape
from skewconv.export.plain_layers import Network, Radius
from skewconv.export.target import FileOptions, Runner, Target
from skewconv.extras import optional
from skewconv.nn.primitives import ResidualSum
from skewconv.nn.tables import UnsupportedLayerError

# Protobuf's own limit for one file.
_LARGEST_BYTES = 2**31 - 1


class OnnxTarget(Target):
    """One file of standard operators."""

    name: ClassVar[str] = "onnx"
    suffix: ClassVar[str] = ".onnx"

    def check(self, options: FileOptions) -> None:
        """Both packages must be there, and know the opset."""
        optional("onnxruntime", "onnxruntime", "export")
        check_opset(options.opset)

    def write(self, network: Network, metadata: Mapping[str, Any], path: Path, options: FileOptions) -> list[Path]:
        """The model, its metadata as JSON values by name."""
        properties = {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
        model = onnx_model(network, properties, options.opset, half=options.half)
        if model.ByteSize() > _LARGEST_BYTES:
            raise ExportError(f"the model has {model.ByteSize():,} bytes, and an ONNX file at most {_LARGEST_BYTES:,}")
        path.write_bytes(model.SerializeToString())
        return [path]

    def runner(self, path: Path) -> Runner:
        """A session of onnxruntime on the CPU, of a file whose content is the one that was written."""
        session, library = _session(path), optional("onnx", "onnx", "export")
        written = session.get_modelmeta().custom_metadata_map.get(GRAPH_HASH)
        if written != graph_hash(library.load(path)):
            raise ExportError(f"{path} is damaged, or was changed after its export: export the model again")
        names = [output.name for output in session.get_outputs()]

        def run(images: Tensor) -> tuple[Tensor, Tensor | None]:
            found = dict(zip(names, session.run(names, {"images": images.numpy()}), strict=True))
            radius = found.get("radius")
            return torch.from_numpy(found["logits"]), None if radius is None else torch.from_numpy(radius)

        return run

    def metadata(self, path: Path) -> dict[str, Any]:
        """The properties of the model, JSON values decoded."""
        found = _session(path).get_modelmeta().custom_metadata_map
        return {name: _decoded(value) for name, value in found.items()}


def _session(path: Path) -> Any:
    if not path.is_file():
        raise ExportError(f"{path} is not a file")
    library = optional("onnxruntime", "onnxruntime", "export")
    options = library.SessionOptions()
    options.log_severity_level = 3
    try:
        return library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # onnxruntime has a class of errors for each of its own codes, and none above them but this one.
        reason = str(error).strip().splitlines()[0]
        raise ExportError(f"{path} is not an ONNX file that can be run ({reason}): export the model again") from error


def _decoded(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def onnx_model(network: Network, metadata: Mapping[str, str], opset: int, *, half: bool) -> Any:
    """The network as a model of standard operators, with outputs ``logits`` and, if it has one, ``radius``.

    Args:
        network: of plain layers.
        metadata: strings by name, which the file carries.
        opset: the version of the operators.
        half: whether weights that float16 can hold are stored so.
    """
    graph, shapes = OnnxGraph(opset, half=half), _shapes(network)
    last = _write(graph, network.layers, "images", shapes)
    graph.node("Identity", last, output="logits")
    outputs: list[tuple[str, Shape]] = [("logits", shapes[network.layers][1])]
    if network.radius is not None:
        assert isinstance(network.radius, Radius)
        _write_radius(graph, network.radius, math.prod(network.input_shape))
        outputs.append(("radius", ()))
    return graph.model(network.input_shape, outputs, metadata)


def _shapes(network: Network) -> dict[nn.Module, tuple[Shape, Shape]]:
    """The shapes of one input and one output of every module, from one run on zeros."""
    met: dict[nn.Module, tuple[Shape, Shape]] = {}

    def note(module: nn.Module, given: Any, made: Any) -> None:
        met[module] = (tuple(given[0].shape[1:]), tuple(made.shape[1:]))

    handles = [module.register_forward_hook(note) for module in network.layers.modules()]
    try:
        with torch.no_grad():
            network.layers(torch.zeros(1, *network.input_shape))
    finally:
        for handle in handles:
            handle.remove()
    return met


Shapes: TypeAlias = Mapping[nn.Module, tuple[Shape, Shape]]


def _write(graph: OnnxGraph, module: nn.Module, x: str, shapes: Shapes, path: str = "") -> str:
    """Add a module, with all that it holds, to the graph; its output's name."""
    for is_batch_last, run in batch_last_runs(list(_links(module, path))):
        if is_batch_last:
            x = batch_to_the_end(graph, x, shapes[run[0][1]][0])
            for _, layer in run:
                x = BATCH_LAST_WRITERS[type(layer)](graph, layer, x, *shapes[layer])
            x = batch_to_the_front(graph, x, shapes[run[-1][1]][1])
            continue
        for name, layer in run:
            x = (
                _write_sum(graph, layer, x, shapes, name)
                if isinstance(layer, ResidualSum)
                else _write_layer(graph, layer, x, shapes, name)
            )
    return x


def _links(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers that run one after another, each with its name."""
    if not isinstance(module, nn.Sequential):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _links(child, f"{path}.{name}" if path else name)


def _write_sum(graph: OnnxGraph, module: ResidualSum, x: str, shapes: Shapes, path: str) -> str:
    active = _write(graph, module.activation, x, shapes, f"{path}.activation")
    residual = _write(graph, module.residual, active, shapes, f"{path}.residual")
    shortcut = module.shortcut
    beside = x if shortcut is None else _write(graph, shortcut, active, shapes, f"{path}.shortcut")
    return graph.node("Add", residual, beside)


def _write_layer(graph: OnnxGraph, module: nn.Module, x: str, shapes: Shapes, path: str) -> str:
    """A type that has no function is refused by name."""
    writer = WRITERS.get(type(module))
    if writer is None:
        known = ", ".join(sorted(kind.__name__ for kind in {*WRITERS, *BATCH_LAST_WRITERS}))
        reason = f"ONNX has a form here for {known}; --to torch-export takes the others"
        raise UnsupportedLayerError(module, reason, path)
    try:
        return writer(graph, module, x, *shapes[module])
    except UnsupportedLayerError as error:
        raise UnsupportedLayerError(error.module, error.reason, path) from None


def _write_radius(graph: OnnxGraph, radius: Radius, pixels: int) -> None:
    """See :class:`skewconv.export.plain_layers.Radius`."""
    bounds = radius.pair_bounds.numpy()
    itself = np.where(np.eye(len(bounds), dtype=bool), np.float32(np.inf), np.float32(0))
    predicted = graph.node("ArgMax", "logits", axis=1, keepdims=0)
    largest = graph.node("ArgMax", "logits", axis=1, keepdims=1)
    gaps = graph.node("Sub", graph.node("GatherElements", "logits", largest, axis=1), "logits")
    margins = graph.node("Sub", gaps, graph.number(float(radius.subtracted)))
    rows = graph.node("Gather", graph.tensor(bounds, "pair_bounds"), predicted)
    radii = graph.node("Div", margins, rows)
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
