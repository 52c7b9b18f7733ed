"""The kinds of files a network can be exported to: each writes files, reads them back and runs them.

The plainest of them is here: programs of torch.export, which PyTorch alone can load.
"""

import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from skewconv.errors import ArgumentError, DtypeError, ExportError, ShapeError
from skewconv.export.plain_layers import Network
from skewconv.nn.primitives import Form
from skewconv.rigor import vector_norm_up

#: images (n, *shape) in float32 -> logits (n, classes), and radii (n,) if the file has them
Runner: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor | None]]
# The file inside a program of torch.export that holds its metadata.
_METADATA = "metadata.json"


@dataclass(frozen=True)
class FileOptions:
    """The ONNX opset, and True where weights that float16 can hold are stored so."""

    opset: int
    half: bool


@dataclass(frozen=True)
class ExportedFile:
    """A file that was read and found whole: call it with images, or read its metadata (labels, shapes, bounds, hashes).

    ``runner`` takes images that are not checked.
    """

    path: Path
    metadata: dict[str, Any]
    runner: Runner

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """(n, *shape), floating in [0, 1] -> logits (n, classes), and radii (n,) if the file gives them.

        The file computes in float32. Around images in float64 the radii are those of the images as it rounds them, less
        the distance between the two.
        """
        shape, (low, high) = tuple(self.metadata["input_shape"]), self.metadata["input_range"]
        if not images.is_floating_point():
            raise DtypeError(f"images must be floating, in [0, 1], got {images.dtype}; divide uint8 images by 255")
        if tuple(images.shape[1:]) != shape or len(images) == 0:
            raise ShapeError(
                f"{self.path.name} was exported for images of shape (batch, {', '.join(map(str, shape))}), got "
                f"{tuple(images.shape)}; resize them, or export the network for this size"
            )
        if not bool(((images >= low) & (images <= high)).all()):
            raise ArgumentError(
                f"images must lie in [{low:g}, {high:g}], got values from {float(images.min()):g} to "
                f"{float(images.max()):g}: divide pixels from 0 to 255 by 255"
            )
        given = images.detach().cpu()
        seen = given.to(torch.float32).contiguous()
        logits, radii = self.runner(seen)
        if radii is not None and given.dtype == torch.float64:
            nearer = radii.double() - vector_norm_up((given - seen.double()).flatten(1)).to(radii.device)
            rounded = nearer.to(radii.dtype)
            below = torch.nextafter(rounded, torch.full_like(rounded, -torch.inf))
            radii = torch.where(rounded > nearer, below, rounded).clamp_min(0)
        return logits, radii


class Target(ABC):
    """A kind of file. A new one is a file with a subclass, and a line in :data:`skewconv.export.TARGETS`."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    #: forms that a layer takes here before its fastest
    prefer: ClassVar[tuple[Form, ...]] = ()

    @abstractmethod
    def check(self, options: FileOptions) -> None:
        """Refuse what cannot work before anything is computed: a package that is missing, an opset that is too old."""

    @abstractmethod
    def write(self, network: Network, metadata: Mapping[str, Any], path: Path, options: FileOptions) -> list[Path]:
        """Write the network; every file that was written, each beginning with the name of ``path``."""

    @abstractmethod
    def read(self, path: Path) -> ExportedFile:
        """A file read back as a user would, or an ExportError if it is damaged."""


def module_runner(module: Callable[[Tensor], Any]) -> Runner:
    """The runner of a module that returns logits, or logits and radii."""

    def run(images: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():
            found = module(images)
        return (found, None) if isinstance(found, Tensor) else (found[0], found[1])

    return run


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
