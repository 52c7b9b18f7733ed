"""The kinds of files a network can be exported to; here programs of torch.export, and Python files with weights."""

import hashlib
import inspect
import json
import runpy
import textwrap
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from skewconv._version import __version__
from skewconv.errors import ArgumentError, DtypeError, ExportError, ShapeError
from skewconv.export import plain
from skewconv.export.plain import Network
from skewconv.extras import optional
from skewconv.nn.module_tools import arguments, constructor_names
from skewconv.nn.primitives import CircularConvolution, ResidualSum
from skewconv.rigor import vector_norm_up

#: images (n, *shape) in float32 -> logits (n, classes), and radii (n,) if the file has them
Runner: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class FileOptions:
    """True where weights that float16 can hold are stored so, and where the file takes pictures."""

    half: bool = False
    preprocess: bool = False


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

        A file that was exported with its preprocessing takes pictures (n, height, width, channels) in uint8 instead.
        The file computes in float32. Around images in float64 the radii are those of the images as it rounds them, less
        the distance between the two.
        """
        shape, (low, high) = tuple(self.metadata["input_shape"]), self.metadata["input_range"]
        if self.metadata["input"].startswith("pictures"):
            if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[3] != shape[0] or 0 in images.shape:
                raise ShapeError(
                    f"{self.path.name} takes {self.metadata['input']}, got {images.dtype} {tuple(images.shape)}"
                )
            return self.runner(images.detach().cpu().contiguous())
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
            radii = (-float32_up(-nearer)).clamp_min(0)
        return logits, radii


def float32_up(values: Tensor) -> Tensor:
    """The least float32 numbers that are not below these float64 numbers."""
    nearest = values.to(torch.float32)
    above = torch.nextafter(nearest, torch.full_like(nearest, torch.inf))
    return torch.where(nearest.double() < values, above, nearest)


class Target(ABC):
    """A kind of file. A new one is a subclass, and a line in :data:`skewconv.export.TARGETS`."""

    name: ClassVar[str]
    suffix: ClassVar[str]

    @abstractmethod
    def check(self, options: FileOptions) -> None:
        """Refuse what cannot work before anything is computed, such as a package that is missing."""
        if options.preprocess:
            raise ArgumentError("--preprocess is for --to onnx: other files take images in [0, 1]")

    @abstractmethod
    def write(self, network: Network, metadata: Mapping[str, Any], path: Path, options: FileOptions) -> list[Path]:
        """Write the network; every file that was written, each beginning with the name of ``path``."""

    @abstractmethod
    def read(self, path: Path) -> ExportedFile:
        """A file read back as a user would, or an ExportError if it is damaged."""


def _module_runner(module: Callable[[Tensor], Any]) -> Runner:
    def run(images: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():
            found = module(images)
        return (found, None) if isinstance(found, Tensor) else (found[0], found[1])

    return run


class TorchExportTarget(Target):
    """One .pt2 file with the graph and the weights, for any batch size; its metadata is an extra file inside."""

    name: ClassVar[str] = "torch-export"
    suffix: ClassVar[str] = ".pt2"
    _METADATA = "metadata.json"

    def check(self, options: FileOptions) -> None:
        super().check(options)
        if options.half:
            raise ExportError("torch.export would cast weights at every call: --weights float16 is for the others")

    def write(self, network: Network, metadata: Mapping[str, Any], path: Path, options: FileOptions) -> list[Path]:
        # A batch of one would be taken for the only size.
        images = torch.zeros(2, *network.input_shape)
        # Torch 2.6 refuses a size that may be as large as an integer can be.
        batch = torch.export.Dim("batch", max=2**31 - 1)
        with torch.no_grad():
            program = torch.export.export(network, (images,), dynamic_shapes=({0: batch},), strict=False)
        torch.export.save(program, str(path), extra_files={self._METADATA: json.dumps(dict(metadata))})
        return [path]

    def read(self, path: Path) -> ExportedFile:
        extra = {self._METADATA: ""}
        try:
            with zipfile.ZipFile(path) as archive:
                if (damaged := archive.testzip()) is not None:
                    raise zipfile.BadZipFile(f"{damaged} does not have its check sum")
            program = torch.export.load(str(path), extra_files=extra)
        except (RuntimeError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            reason = str(error).strip().splitlines()[0]
            raise ExportError(f"{path} is not a program of torch.export ({reason}): export the model again") from error
        return ExportedFile(path, json.loads(extra[self._METADATA] or "{}"), _module_runner(program.module()))


# Where the library chooses who multiplies (skewconv.ops.products), the file has PyTorch's functions of the same names.
_TEXT = '''"""A network in plain PyTorch: images (n, {shape}) in [0, 1] to {outputs}. Made by skewconv {version}.

    from {module} import load

    network = load()
    {outputs_in_code} = network(images)
"""

import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load as load_tensors
from torch import Tensor, bmm, matmul, nn

SHA256 = "{sha256}"


{classes}

def build() -> Network:
    """The network without its weights."""
    return {network}


def load(path: str | Path = Path(__file__).with_suffix(".safetensors")) -> Network:
    """The network with its weights, which must be those that were exported with this file."""
    content = Path(path).read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise ValueError(f"{{path}} is damaged, or belongs to another network: export both files again")
    network = build()
    network.load_state_dict(load_tensors(content))
    return network.eval().requires_grad_(False)
'''


class VanillaTarget(Target):
    """FILE.py, and FILE.safetensors with the metadata in its header."""

    name: ClassVar[str] = "vanilla"
    suffix: ClassVar[str] = ".py"

    def check(self, options: FileOptions) -> None:
        super().check(options)
        optional("safetensors.torch", "safetensors", "export")

    def write(self, network: Network, metadata: Mapping[str, Any], path: Path, options: FileOptions) -> list[Path]:
        """The weights first, since the text names their hash."""
        network = Network(flat(network.layers), network.radius, network.input_shape)
        tensors = {n: plain.shortened(t, options.half).contiguous() for n, t in network.state_dict().items()}
        save = optional("safetensors.torch", "safetensors", "export").save
        content: bytes = save(tensors, metadata={"skewconv": json.dumps(dict(metadata))})
        weights, certified = path.with_suffix(".safetensors"), network.radius is not None
        weights.write_bytes(content)
        text = _TEXT.format(
            shape=", ".join(map(str, network.input_shape)),
            outputs="logits and proven radii" if certified else "logits",
            outputs_in_code="logits, radius" if certified else "logits",
            version=__version__,
            module=path.stem if path.stem.isidentifier() else "this_file",
            sha256=hashlib.sha256(content).hexdigest(),
            classes=_class_sources(network),
            network=textwrap.indent(expression(network), "    ").lstrip(),
        )
        path.write_text(text, encoding="utf-8")
        return [weights, path]

    def read(self, path: Path) -> ExportedFile:
        library, weights = optional("safetensors", "safetensors", "export"), path.with_suffix(".safetensors")
        try:
            network = runpy.run_path(str(path))["load"]()
            with library.safe_open(str(weights), framework="pt") as file:
                metadata = json.loads((file.metadata() or {})["skewconv"])
        except (OSError, KeyError, ValueError, SyntaxError, library.SafetensorError) as error:
            raise ExportError(f"{path} or {weights.name} is damaged ({error}): export the model again") from error
        return ExportedFile(path, metadata, _module_runner(network))


def flat(module: nn.Module) -> nn.Sequential:
    """Chains of chains as one, numbered from 0, so that names in a file are short and say the order."""
    links = [link for _, link in plain.flat_layers(module)]
    for place, link in enumerate(links):
        if isinstance(link, ResidualSum):
            links[place] = ResidualSum(**{name: flat(part) for name, part in link.named_children()})
    return nn.Sequential(*links)


def _is_ours(kind: type) -> bool:
    return kind.__module__ == plain.__name__ or kind in (ResidualSum, CircularConvolution)


def _class_sources(network: Network) -> str:
    """The text of every class of ours that the network uses, in the order of their file."""
    used = {kind for module in network.modules() for kind in type(module).__mro__}
    ours = [kind for kind in vars(plain).values() if isinstance(kind, type) and _is_ours(kind) and kind in used]
    return "\n\n".join(inspect.getsource(kind) for kind in ours)


def expression(value: Any) -> str:
    """The Python expression of a module, or of an argument of its constructor; tensors are empty there."""
    if isinstance(value, Tensor):
        return f"torch.empty({', '.join(map(str, value.shape)) if value.dim() else '()'})"
    if not isinstance(value, nn.Module):
        return repr(tuple(value)) if isinstance(value, (list, torch.Size)) else repr(value)
    if isinstance(value, nn.Sequential):
        words = [expression(child) for child in value]
    else:
        # Our constructors keep modules and tensors under the names of their arguments, too.
        names = constructor_names(type(value))
        held = {name: each for name, each in {**value._modules, **value._buffers}.items() if name in names}
        words = [f"{name}={expression(each)}" for name, each in {**held, **arguments(value)}.items()]
    kind = f"{'' if _is_ours(type(value)) else 'nn.'}{type(value).__name__}"
    short = f"{kind}({', '.join(words)})"
    if len(short) <= 100 and "\n" not in short and not isinstance(value, nn.Sequential):
        return short
    return f"{kind}(\n{''.join(textwrap.indent(f'{word},{chr(10)}', '    ') for word in words)})"
