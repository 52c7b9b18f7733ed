"""Frozen models on disk: the names, arguments and tensors of their primitives; nothing is unpickled."""

import json
from dataclasses import astuple, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skewconv._version import __version__
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.extras import optional
from skewconv.frozen.freeze import FrozenModel
from skewconv.nn.bounds import lipschitz_bound
from skewconv.nn.gains import check_shapes, gain_bounds
from skewconv.nn.module_tools import arguments, constructor_names
from skewconv.nn.primitives import Primitive, ResidualSum
from skewconv.records import atomic_write

_FORMAT = 2
# What kinds of earlier versions are called now; networks of parts that run one after the other are chains.
_EARLIER = {
    "FrozenSeries": "SkewExponential",
    "FrozenSpectral": "Spectral",
    "FrozenDense": "Dense",
    "FrozenConv": "Convolution",
    "FrozenResidual": "ResidualStep",
    "ResidualBlock": "ResidualSum",
    "LipConvnet": "Sequential",
    "ResNet": "Sequential",
}


def _kinds() -> dict[str, type[nn.Module]]:
    """Every type with a bound, by name: what a lowered model is made of."""
    return {kind.__name__: kind for kind in lipschitz_bound.registry if kind is not object}


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

    Nothing in the file is executed, and gains are proven anew from the numbers that it holds.
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
        # Format 1 stored every frequency as a complex one; what else it holds is as it was.
        if description["format"] not in (1, _FORMAT) or any(key.endswith(".forward_table") for key in tensors):
            raise SkewconvError(
                f"{path} was written by another version (format {description['format']}, here {_FORMAT}); freeze the "
                "model again"
            )
        model = _build(description["model"], "model", tensors)
        return FrozenModel(model, tuple(description["input_shape"]), float(description["tol"]))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise SkewconvError(f"{path} does not hold a frozen model of this library: {error!r}") from error


def _describe(module: nn.Module, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A module as JSON; its tensors go to ``tensors`` under its name."""
    kind = type(module).__name__
    if _kinds().get(kind) is not type(module):
        raise ArgumentError(
            f"'{prefix}' is a {kind}, which cannot be saved; models made of {', '.join(sorted(_kinds()))} can"
        )
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        tensors[f"{prefix}.{name}"] = tensor.detach().contiguous()
    children = {
        name: _describe(child, f"{prefix}.{name}", tensors)
        for name, child in module._modules.items()
        if child is not None
    }
    settings = {} if children else {k: astuple(v) if _is_value(v) else v for k, v in arguments(module).items()}
    return {"kind": kind, "settings": settings, "children": children}


def _is_value(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _build(node: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> nn.Module:
    name = _EARLIER.get(node["kind"], node["kind"])
    kind, start = _kinds().get(name), prefix + "."
    if kind is None:
        raise SkewconvError(
            f"'{prefix}' is a {node['kind']!r}, which is not known here: the file was written by another version, or "
            "with a class of your own that must be imported before"
        )
    own = {key[len(start) :]: t for key, t in tensors.items() if key.startswith(start) and "." not in key[len(start) :]}
    children = {name: _build(child, start + name, tensors) for name, child in node["children"].items()}
    if kind is nn.Sequential:
        chained = nn.Sequential()
        for child in children:
            chained.add_module(child, children[child])
        return chained.eval()
    if kind is ResidualSum:
        return ResidualSum(children["activation"], children["residual"], children.get("shortcut")).eval()
    return _constructed(kind, node["settings"], own).eval()


def _constructed(kind: type[nn.Module], settings: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    """A module by its constructor, with its tensors; each must have the shape that the constructor says."""
    names = constructor_names(kind)
    # JSON has lists only, and some of PyTorch's constructors take tuples only.
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items() if k in names}
    if not kind.__module__.startswith("torch."):
        given |= {k: t for k, t in tensors.items() if k in names}
    module = kind(**given)
    for name, tensor in tensors.items():
        if tuple(getattr(module, name).shape) != tuple(tensor.shape):
            raise ArgumentError(f"a {kind.__name__} whose {name} has the shape {tuple(tensor.shape)}")
        if isinstance(getattr(module, name), nn.Parameter):
            setattr(module, name, nn.Parameter(tensor, requires_grad=False))
        elif not isinstance(module, Primitive):
            module.register_buffer(name, tensor)
    if isinstance(module, Primitive):
        check_shapes(module)
        with torch.no_grad():
            gain_bounds(module)
    return module
