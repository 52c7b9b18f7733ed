"""Frozen models on disk: safetensors for the numbers, JSON for the rest; nothing is unpickled."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from skewconv._version import __version__
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.frozen.freeze import FrozenModel
from skewconv.frozen.layers import FrozenConv, FrozenDense, FrozenSeries, FrozenSpectral
from skewconv.models.lipconvnet import LipConvnet
from skewconv.models.resnet import ResidualBlock, ResNet
from skewconv.nn import GroupSort, Householder, MaxMin, Normalize
from skewconv.ops.convolution import Geometry
from skewconv.ops.polynomials import Polynomial
from skewconv.records import atomic_write

_FORMAT = 1


def save_frozen(model: FrozenModel, path: str | Path) -> Path:
    """Write one ``.safetensors`` file with the model's description in its header; atomically.

    Args:
        model: from :func:`skewconv.freeze`.
        path: the file; an existing one is replaced only when the new one is complete.
    """
    from safetensors.torch import save

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

    Nothing in the file is executed, but its gains are believed, as they were proven when it was frozen: read files that
    you trust, or freeze the original again.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
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
    kind = next((name for name, (cls, _, _) in _KINDS.items() if type(module) is cls), None)
    if kind is None:
        raise ArgumentError(
            f"'{prefix}' is a {type(module).__name__}, which cannot be saved; models made of "
            f"{', '.join(sorted(_KINDS))} can"
        )
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        tensors[f"{prefix}.{name}"] = tensor.detach().contiguous()
    children = {name: _describe(child, f"{prefix}.{name}", tensors) for name, child in module.named_children()}
    return {"kind": kind, "settings": _KINDS[kind][1](module), "children": children}


def _build(node: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> nn.Module:
    start = prefix + "."
    own = {key[len(start) :]: t for key, t in tensors.items() if key.startswith(start) and "." not in key[len(start) :]}
    children = {name: _build(child, start + name, tensors) for name, child in node["children"].items()}
    module = _KINDS[node["kind"]][2](node["settings"], own, children)
    if node["kind"] not in _TAKES_TENSORS:
        for name, tensor in own.items():
            current = getattr(module, name)
            if isinstance(current, nn.Parameter):
                setattr(module, name, nn.Parameter(tensor, requires_grad=False))
            else:
                module.register_buffer(name, tensor)
    return module.eval()


def _series(settings: dict[str, Any], tensors: dict[str, Tensor], _: Any) -> nn.Module:
    series, rho, coefficients, error = settings["polynomial"]
    kernel, dilation, groups, padding_mode = settings["geometry"]
    arguments: dict[str, Any] = {
        **settings,
        **tensors,
        "polynomial": Polynomial(series, rho, tuple(coefficients), error),
        "geometry": Geometry(tuple(kernel), tuple(dilation), groups, padding_mode),
    }
    return FrozenSeries(**arguments)


def _frozen(cls: type[nn.Module]) -> Callable[..., nn.Module]:
    return lambda settings, tensors, _: cls(**settings, **tensors)


def _plain(cls: type[nn.Module]) -> Callable[..., nn.Module]:
    return lambda settings, tensors, _: cls(**settings)


def _container(cls: type[nn.Module]) -> Callable[..., nn.Module]:
    """A module whose forward uses its children and nothing else: made without its constructor."""

    def build(settings: dict[str, Any], tensors: dict[str, Tensor], children: dict[str, nn.Module]) -> nn.Module:
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        for name, child in children.items():
            module.add_module(name, child)
        for name, value in settings.items():
            setattr(module, name, value)
        return module

    return build


def _fields(*names: str) -> Callable[[Any], dict[str, Any]]:
    return lambda module: {name: getattr(module, name) for name in names}


def _batch_norm(settings: dict[str, Any], tensors: dict[str, Tensor], _: Any) -> nn.Module:
    return nn.BatchNorm2d(**settings, dtype=tensors["running_var"].dtype)


_Describe = Callable[[Any], dict[str, Any]]
_KINDS: dict[str, tuple[type[nn.Module], _Describe, Callable[..., nn.Module]]] = {
    "FrozenDense": (FrozenDense, FrozenDense.settings, _frozen(FrozenDense)),
    "FrozenSpectral": (FrozenSpectral, FrozenSpectral.settings, _frozen(FrozenSpectral)),
    "FrozenConv": (FrozenConv, FrozenConv.settings, _frozen(FrozenConv)),
    "FrozenSeries": (FrozenSeries, FrozenSeries.settings, _series),
    "Linear": (
        nn.Linear,
        lambda m: {"in_features": m.in_features, "out_features": m.out_features, "bias": m.bias is not None},
        _plain(nn.Linear),
    ),
    "BatchNorm2d": (nn.BatchNorm2d, _fields("num_features", "eps", "affine"), _batch_norm),
    "Normalize": (
        Normalize,
        lambda m: {"mean": m.mean.tolist(), "std": m.std.tolist(), "dim": m.dim},
        _plain(Normalize),
    ),
    "MaxMin": (MaxMin, _fields("dim"), _plain(MaxMin)),
    "GroupSort": (GroupSort, _fields("group_size", "dim"), _plain(GroupSort)),
    "Householder": (Householder, _fields("channels", "order", "dim"), _plain(Householder)),
    "Flatten": (nn.Flatten, _fields("start_dim", "end_dim"), _plain(nn.Flatten)),
    "ReLU": (nn.ReLU, lambda m: {}, _plain(nn.ReLU)),
    "AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d, _fields("output_size"), _plain(nn.AdaptiveAvgPool2d)),
    "Sequential": (nn.Sequential, lambda m: {}, _container(nn.Sequential)),
    "LipConvnet": (
        LipConvnet,
        _fields("depth", "num_classes", "width", "in_channels", "input_size", "features"),
        _container(LipConvnet),
    ),
    "ResNet": (ResNet, lambda m: {}, _container(ResNet)),
    "ResidualBlock": (
        ResidualBlock,
        lambda m: {"shortcut": None} if m.shortcut is None else {},
        _container(ResidualBlock),
    ),
}
_TAKES_TENSORS = frozenset({"FrozenDense", "FrozenSpectral", "FrozenConv", "FrozenSeries"})
