"""Plain PyTorch: a Python file that builds the network of torch.nn modules, and its weights as safetensors."""

import hashlib
import inspect
import json
import runpy
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from skewconv._version import __version__
from skewconv.errors import ExportError
from skewconv.export import plain_layers
from skewconv.export.plain import flat_layers
from skewconv.export.plain_layers import Network
from skewconv.export.target import ExportedFile, FileOptions, Target, module_runner
from skewconv.extras import optional
from skewconv.nn.module_tools import arguments, constructor_names
from skewconv.nn.primitives import Form, ResidualSum

_METADATA = "skewconv"
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
from torch import Tensor, nn

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
    """Two files: FILE.py and FILE.safetensors."""

    name: ClassVar[str] = "vanilla"
    suffix: ClassVar[str] = ".py"
    # One nn.Conv2d is what people look for.
    prefer: ClassVar[tuple[Form, ...]] = ("convolution",)

    def check(self, options: FileOptions) -> None:
        """Weights are written by safetensors."""
        optional("safetensors.torch", "safetensors", "export")

    def write(self, network: Network, metadata: Mapping[str, Any], path: Path, options: FileOptions) -> list[Path]:
        """The weights first, since the text names their hash."""
        plain = Network(flat(network.layers), network.radius, network.input_shape)
        tensors = {name: _stored(tensor, options.half) for name, tensor in plain.state_dict().items()}
        save = optional("safetensors.torch", "safetensors", "export").save
        content: bytes = save(tensors, metadata={_METADATA: json.dumps(dict(metadata))})
        weights = path.with_suffix(".safetensors")
        weights.write_bytes(content)
        path.write_text(_text(plain, path.stem, hashlib.sha256(content).hexdigest()), encoding="utf-8")
        return [weights, path]

    def read(self, path: Path) -> ExportedFile:
        """What the file itself loads; its metadata is in the header of the weights."""
        library, weights = optional("safetensors", "safetensors", "export"), path.with_suffix(".safetensors")
        try:
            network = runpy.run_path(str(path))["load"]()
            with library.safe_open(str(weights), framework="pt") as file:
                metadata = json.loads((file.metadata() or {})[_METADATA])
        except (OSError, KeyError, ValueError, SyntaxError, library.SafetensorError) as error:
            raise ExportError(f"{path} or {weights.name} is damaged ({error}): export the model again") from error
        return ExportedFile(path, metadata, module_runner(network))


def _stored(tensor: Tensor, half: bool) -> Tensor:
    """The tensor as the file holds it: in float16 where that was asked for and loses nothing."""
    short = tensor.to(torch.float16) if half and tensor.is_floating_point() and tensor.numel() >= 64 else tensor
    return (short if torch.equal(short.to(tensor.dtype), tensor) else tensor).contiguous()


def _text(network: Network, module: str, sha256: str) -> str:
    certified = network.radius is not None
    body = expression(network)
    return _TEXT.format(
        shape=", ".join(map(str, network.input_shape)),
        outputs="logits and proven radii" if certified else "logits",
        outputs_in_code="logits, radius" if certified else "logits",
        version=__version__,
        module=module if module.isidentifier() else "this_file",
        sha256=sha256,
        classes=class_sources(network),
        network="\n".join([body.splitlines()[0], *(f"    {line}" for line in body.splitlines()[1:])]),
    )


def flat(module: nn.Module) -> nn.Sequential:
    """Chains of chains as one, numbered from 0, so that names in a file are short and say the order."""
    links = []
    for _, link in flat_layers(module):
        if isinstance(link, ResidualSum):
            parts = {name: flat(part) for name, part in link.named_children()}
            link = ResidualSum(parts["activation"], parts["residual"], parts.get("shortcut"))
        links.append(link)
    return nn.Sequential(*links)


def class_sources(network: Network) -> str:
    """The text of every class of ours that the network uses, in the order of their file."""
    used = {type(module) for module in network.modules()}
    ours = [kind for kind in (*vars(plain_layers).values(), ResidualSum) if isinstance(kind, type) and _is_ours(kind)]
    return "\n\n".join(inspect.getsource(kind) for kind in ours if kind in used)


def _is_ours(kind: type) -> bool:
    return kind.__module__ == plain_layers.__name__ or kind is ResidualSum


def expression(value: Any) -> str:
    """The Python expression of a module, or of an argument of its constructor; tensors are empty there.

    >>> print(expression(nn.Sequential(nn.Flatten(), nn.Linear(2, 3))))
    nn.Sequential(
        nn.Flatten(start_dim=1, end_dim=-1),
        nn.Linear(in_features=2, out_features=3, bias=True),
    )
    """
    if isinstance(value, Tensor):
        return f"torch.empty({', '.join(map(str, value.shape)) if value.dim() else '()'})"
    if not isinstance(value, nn.Module):
        return repr(tuple(value)) if isinstance(value, (list, torch.Size)) else repr(value)
    if isinstance(value, nn.Sequential):
        lines = "".join(textwrap.indent(f"{expression(child)},\n", "    ") for child in value)
        return f"nn.Sequential(\n{lines})"
    words = [f"{name}={expression(argument)}" for name, argument in _arguments(value).items()]
    prefix = "" if _is_ours(type(value)) else "nn."
    short = f"{prefix}{type(value).__name__}({', '.join(words)})"
    if len(short) <= 100 and "\n" not in short:
        return short
    lines = "".join(textwrap.indent(f"{word},\n", "    ") for word in words)
    return f"{prefix}{type(value).__name__}(\n{lines})"


def _arguments(module: nn.Module) -> dict[str, Any]:
    """The arguments of its constructor: ours keep tensors under their names, too."""
    found = {name: getattr(module, name, None) for name in constructor_names(type(module)) if name in module._buffers}
    children = {name: child for name, child in module._modules.items() if name in constructor_names(type(module))}
    return {**children, **found, **arguments(module)}
