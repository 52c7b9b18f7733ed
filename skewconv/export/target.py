"""The kinds of files a network can be exported to: each writes files, and reads and runs what it wrote."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from skewconv.errors import ArgumentError, DtypeError, ShapeError
from skewconv.export.plain_layers import Network
from skewconv.nn.primitives import Form
from skewconv.rigor import vector_norm_up

#: images (n, *shape) in float32 -> logits (n, classes), and radii (n,) if the file has them
Runner: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class FileOptions:
    """The ONNX opset, and True where weights that float16 can hold are stored so."""

    opset: int
    half: bool


@dataclass(frozen=True)
class ExportedFile:
    """A file that was read and found whole; call it with images.

    Args:
        path: of the file.
        metadata: labels, shape and range of the images, bounds, hashes, versions.
        runner: images to logits and radii, unchecked.
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
