"""Models as files that run elsewhere: ONNX, torch.export, plain PyTorch; each checked before it is put in place."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from skewconv.errors import ArgumentError, ExportError
from skewconv.export.onnx_target import OnnxTarget
from skewconv.export.plain import register_plain
from skewconv.export.target import ExportedFile, Target, TorchExportTarget
from skewconv.export.vanilla_target import VanillaTarget
from skewconv.export.write import Export, export, within_budget

#: where a network can be exported to, by the word of the command line
TARGETS: dict[str, Target] = {target.name: target for target in (OnnxTarget(), TorchExportTarget(), VanillaTarget())}


def onnx(
    model: nn.Module, path: str | Path, input_shape: Sequence[int], labels: Sequence[str] | None = None, **options: Any
) -> Export:
    """An ONNX file of standard operators: input ``images`` in [0, 1], outputs ``logits`` and ``radius``.

    Args:
        model, path, input_shape, labels, options: see :func:`export`.
    """
    return export(TARGETS["onnx"], model, path, input_shape, labels, **options)


def open_file(path: str | Path) -> ExportedFile:
    """An exported file, checked to be whole: call it with images, or read its metadata.

    Args:
        path: FILE.onnx, FILE.pt2 or FILE.py; the last is Python, and is executed.
    """
    place = Path(path)
    target = next((each for each in TARGETS.values() if each.suffix == place.suffix), None)
    if target is None:
        known = ", ".join(each.suffix for each in TARGETS.values())
        raise ArgumentError(f"{place.name} is no exported file: their names end in {known}")
    if not place.is_file():
        raise ExportError(f"{place} does not exist")
    found = target.read(place)
    if "input_shape" not in found.metadata:
        raise ExportError(f"{place} has no metadata: it was not exported by this library")
    return found


__all__ = [
    "TARGETS",
    "Export",
    "ExportError",
    "ExportedFile",
    "Target",
    "export",
    "onnx",
    "open_file",
    "register_plain",
    "within_budget",
]
