"""Programs of torch.export, which PyTorch alone can load."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from skewconv.errors import ExportError
from skewconv.export.plain_layers import Network
from skewconv.export.target import ExportedFile, FileOptions, Target, module_runner

_METADATA = "metadata.json"


class TorchExportTarget(Target):
    """One .pt2 file with the graph and the weights, for any batch size."""

    name: ClassVar[str] = "torch-export"
    suffix: ClassVar[str] = ".pt2"

    def check(self, options: FileOptions) -> None:
        """PyTorch is there; weights of float16 would be cast at every call."""
        if options.half:
            raise ExportError("torch.export would cast weights at every call: --weights float16 is for the others")

    def write(self, network: Network, metadata: Mapping[str, Any], path: Path, options: FileOptions) -> list[Path]:
        """The traced program; its metadata is an extra file inside."""
        # A batch of one would be taken for the only size.
        images = torch.zeros(2, *network.input_shape)
        # Torch 2.6 refuses a size that may be as large as an integer can be.
        batch = torch.export.Dim("batch", max=2**31 - 1)
        with torch.no_grad():
            program = torch.export.export(network, (images,), dynamic_shapes=({0: batch},), strict=False)
        torch.export.save(program, str(path), extra_files={_METADATA: json.dumps(dict(metadata))})
        return [path]

    def read(self, path: Path) -> ExportedFile:
        """The loaded program."""
        extra = {_METADATA: ""}
        try:
            with zipfile.ZipFile(path) as archive:
                if (damaged := archive.testzip()) is not None:
                    raise zipfile.BadZipFile(f"{damaged} does not have its check sum")
            program = torch.export.load(str(path), extra_files=extra)
        except (RuntimeError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            reason = str(error).strip().splitlines()[0]
            raise ExportError(f"{path} is not a program of torch.export ({reason}): export the model again") from error
        return ExportedFile(path, json.loads(extra[_METADATA] or "{}"), module_runner(program.module()))
