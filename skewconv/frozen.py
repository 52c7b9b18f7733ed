"""Models for inference, in which everything that depends on the weights alone is computed once; and their files.

A file holds the names, arguments and tensors of the primitives; nothing is unpickled.
"""

import copy
import json
from collections.abc import Iterable
from dataclasses import astuple, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skewconv._version import __version__
from skewconv.checks import check_positive
from skewconv.errors import ArgumentError, ShapeError, SkewconvError
from skewconv.extras import optional
from skewconv.nn.bounds import lipschitz_bound
from skewconv.nn.gains import check_shapes, gain_bounds
from skewconv.nn.lowering import Chooser, lower, sequence
from skewconv.nn.module_tools import arguments, constructor_names, for_inference, unwrapped
from skewconv.nn.primitives import Primitive, ResidualSum
from skewconv.ops.torch_modes import between_layers, in_format_of
from skewconv.records import atomic_write

__all__ = ["FrozenModel", "freeze", "load_frozen", "save_frozen"]

_FORMAT = 3


class FrozenModel(nn.Module):
    """The lowered modules for inputs of one shape, without the batch axis, within ``tol`` of the original's outputs."""

    def __init__(self, model: nn.Module, input_shape: tuple[int, ...], tol: float) -> None:
        super().__init__()
        self.model, self.input_shape, self.tol = model, tuple(input_shape), tol
        between_layers(self)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.input_shape:
            raise ShapeError(
                f"this model was frozen for inputs of shape (batch, {', '.join(map(str, self.input_shape))}), got "
                f"{tuple(x.shape)}; freeze the original again for the new size"
            )
        return in_format_of(x, self.model(x))

    def train(self, mode: bool = True) -> "FrozenModel":
        """Frozen models have no training mode."""
        if mode:
            raise ArgumentError("a frozen model cannot be trained; train the original and freeze it again")
        return super().train(False)

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> nn.Module:
        """The frozen modules, of which certificates speak."""
        return self.model


def freeze(
    model: nn.Module, input_shape: Iterable[int], tol: float = 1e-6, *, choose: Chooser | None = None
) -> FrozenModel:
    """A plain, fast inference model with the same outputs: the model lowered within a tolerance.

    >>> from skewconv.models import LipConvnet
    >>> model = LipConvnet(5, in_channels=1, input_size=8, width=4).eval()
    >>> frozen = freeze(model, (1, 8, 8))
    >>> x = torch.rand(2, 1, 8, 8)
    >>> torch.testing.assert_close(frozen(x), model(x), atol=1e-5, rtol=0)

    Convolutions with circular padding become one product per frequency, small ones with zero padding one matrix, large
    ones keep their convolutions, with a normalised filter and the fewest steps that a tight bound of its norm allows.
    Each new layer has a gain that is proven for what it stores.

    Args:
        model: any module; layers of this library are frozen, others are copied.
        input_shape: the shape of one input, without the batch axis. The frozen model takes this size only.
        tol: the largest difference of the outputs from the original's in exact arithmetic, relative to the activations'
            norms; what rounding adds in the model's precision comes on top.
        choose: decides between forms of layers that can take several, by size for example
            (see :func:`skewconv.export.within_budget`); by default each takes the fastest.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be an nn.Module, got {type(model).__name__}")
    tol, shape = check_positive(tol, "tol"), tuple(input_shape)
    inner = for_inference(copy.deepcopy(unwrapped(model)))
    return FrozenModel(lower(inner, shape, tol, choose=choose), shape, tol)


def _kinds() -> dict[str, type[nn.Module]]:
    return {kind.__name__: kind for kind in lipschitz_bound.registry if kind is not object}


def save_frozen(model: FrozenModel, path: str | Path) -> Path:
    """Write one ``.safetensors`` file with the model's description in its header; atomically."""
    save = optional("safetensors.torch", "safetensors").save
    tensors: dict[str, Tensor] = {}
    description = {"format": _FORMAT, "skewconv": __version__, "input_shape": model.input_shape, "tol": model.tol}
    description["model"] = _describe(model.model, "model", tensors)
    target = Path(path)
    atomic_write(target, save(tensors, metadata={"skewconv": json.dumps(description)}))
    return target


def load_frozen(path: str | Path) -> FrozenModel:
    """A frozen model back from :func:`save_frozen`: nothing in the file is executed, and gains are proven anew."""
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
    held = {name: child for name, child in module._modules.items() if child is not None}
    children = {name: _describe(child, f"{prefix}.{name}", tensors) for name, child in held.items()}
    given: dict[str, Any] = {} if children else arguments(module)
    settings = {k: astuple(v) if is_dataclass(v) else v for k, v in given.items()}  # type: ignore[arg-type]
    return {"kind": kind, "settings": settings, "children": children}


def _build(node: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> nn.Module:
    kind, start = _kinds().get(node["kind"]), prefix + "."
    if kind is None:
        raise SkewconvError(
            f"'{prefix}' is a {node['kind']!r}, which is not known here: the file was written by another version, or "
            "with a class of your own that must be imported before"
        )
    own = {key[len(start) :]: t for key, t in tensors.items() if key.startswith(start) and "." not in key[len(start) :]}
    children = {name: _build(child, start + name, tensors) for name, child in node["children"].items()}
    if kind is nn.Sequential:
        return sequence(**children).eval()
    if kind is ResidualSum:
        return ResidualSum(**children).eval()
    names = constructor_names(kind)
    # JSON has lists only, and some of PyTorch's constructors take tuples only.
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in node["settings"].items() if k in names}
    if not kind.__module__.startswith("torch."):
        given |= {k: t for k, t in own.items() if k in names}
    module = kind(**given)
    for name, tensor in own.items():
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
    return module.eval()
