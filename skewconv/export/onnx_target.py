"""ONNX files, run by onnxruntime."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from skewconv.errors import ExportError
from skewconv.export.onnx_file import onnx_model
from skewconv.export.onnx_graph import GRAPH_HASH, check_opset, graph_hash
from skewconv.export.plain_layers import Network
from skewconv.export.target import FileOptions, Runner, Target
from skewconv.extras import optional

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
