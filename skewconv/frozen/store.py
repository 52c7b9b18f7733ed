"""Frozen models on disk: safetensors for the numbers, JSON for the rest; nothing is unpickled."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from skewconv._version import __version__
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.extras import optional
from skewconv.frozen.freeze import FrozenModel
from skewconv.nn.protocol.stored import storable_names, stored_form, stored_form_named
from skewconv.records import atomic_write

_FORMAT = 1


def save_frozen(model: FrozenModel, path: str | Path) -> Path:
    """Write one ``.safetensors`` file with the model's description in its header; atomically.

    Args:
        model: from :func:`skewconv.freeze`.
        path: the file; an existing one is replaced only when the new one is complete.
    """
    save = optional("safetensors.torch", "safetensors").save
    tensors: dict[str, Tensor] = {}
    modules = _describe(model.model, "model", tensors)
    description = {
        "format": _FORMAT,
        "skewconv": __version__,
        "input_shape": model.input_shape,
        "tol": model.tol,
        "lipschitz_upper_bound": model.lipschitz_upper_bound(model.input_shape),
        "model": modules,
    }
    target = Path(path)
    atomic_write(target, save(tensors, metadata={"skewconv": json.dumps(description)}))
    return target


def load_frozen(path: str | Path) -> FrozenModel:
    """A frozen model back from :func:`save_frozen`.

    Nothing in the file is executed, and what it says of its gains is not believed: they are proven anew from the
    numbers that it holds.
    """
    library = optional("safetensors", "safetensors")
    try:
        with library.safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, library.SafetensorError) as error:
        raise SkewconvError(f"{path} is not a readable safetensors file: {error}") from error
    try:
        description = json.loads(header["skewconv"])
        if description["format"] != _FORMAT:
            raise SkewconvError(f"{path} has format {description['format']}; this version reads {_FORMAT}")
        model = _build(description["model"], "model", tensors)
        return FrozenModel(model, tuple(description["input_shape"]), float(description["tol"]))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SkewconvError(f"{path} does not hold a frozen model of this library: {error!r}") from error


def _describe(module: nn.Module, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A module as JSON; its tensors go to ``tensors`` under its name."""
    form = stored_form(module)
    if form is None:
        raise ArgumentError(
            f"'{prefix}' is a {type(module).__name__}, which cannot be saved; models made of "
            f"{', '.join(storable_names())} can, and classes decorated with skewconv.nn.protocol.storable"
        )
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        tensors[f"{prefix}.{name}"] = tensor.detach().contiguous()
    children = {name: _describe(child, f"{prefix}.{name}", tensors) for name, child in module.named_children()}
    return {"kind": type(module).__name__, "settings": form.settings(module), "children": children}


def _build(node: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> nn.Module:
    start, form = prefix + ".", stored_form_named(node["kind"])
    if form is None:
        raise SkewconvError(
            f"'{prefix}' is a {node['kind']!r}, which is not known here: the file was written by another version, or "
            "with a class of your own that must be imported before"
        )
    own = {key[len(start) :]: t for key, t in tensors.items() if key.startswith(start) and "." not in key[len(start) :]}
    children = {name: _build(child, start + name, tensors) for name, child in node["children"].items()}
    return form.build(node["settings"], own, children).eval()
