"""Models as files that run elsewhere: ONNX, torch.export, plain PyTorch; each checked before it is put in place."""

from skewconv.errors import ExportError
from skewconv.export.plain import register_plain
from skewconv.export.target import ExportedFile, Target
from skewconv.export.write import TARGETS, Export, export, onnx, open_file, within_budget

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
