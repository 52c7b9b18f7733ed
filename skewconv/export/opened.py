"""An exported file, opened again: what it says of itself, and its answers, with mistakes told in words."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skewconv.errors import ArgumentError, DtypeError, ExportError, ShapeError
from skewconv.export.target import Runner, Target
from skewconv.rigor import vector_norm_up


@dataclass(frozen=True)
class ExportedFile:
    """A file that was read and found whole; call it with images.

    Args:
        path: of the file.
        metadata: what it says of itself: labels, shape and range of the images, bounds, hashes, versions.
        runner: images to logits and radii.
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


def opened(path: str | Path, targets: dict[str, Target]) -> ExportedFile:
    """Read a file of one of these targets, by its suffix."""
    place = Path(path)
    target = next((each for each in targets.values() if each.suffix == place.suffix), None)
    if target is None:
        known = ", ".join(each.suffix for each in targets.values())
        raise ArgumentError(f"{place.name} is no exported file: their names end in {known}")
    if not place.is_file():
        raise ExportError(f"{place} does not exist")
    runner = target.runner(place)
    facts = target.metadata(place)
    if "input_shape" not in facts:
        raise ExportError(f"{place} does not say what it is: it was not exported by this library")
    return ExportedFile(place, facts, runner)
