"""The door to the proof in balls: the layers of a model as NumPy arrays, refused by name where there is no proof.

The numbers that define the function are those of the model's float64 copy: filters, matrices, coefficients. Filters of
SOC layers and the matrices of the heads are held against what the stored parameters define, derived a second time.
Nothing behind the door knows of PyTorch.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor, nn

from skewconv.ball import (
    BatchNorm,
    Circular,
    Dense,
    Fold,
    Layer,
    Linear,
    MaxMin,
    Normalisation,
    Rearrangement,
    Rectifier,
    ResidualStep,
    RowSumConvolution,
    SkewExponential,
    SortedGroups,
    Spectral,
)
from skewconv.ball.exact import Floats, Integers
from skewconv.ball.origin import exponential_rows, inverse_roots_of_row_sums, same, same_up_to_scale, skew_filter
from skewconv.ball.pixels import unshuffled
from skewconv.errors import UnboundedModuleError
from skewconv.nn.protocol import reason_to_doubt
from skewconv.nn.wrappers import held_model


class ForeignOperatorError(UnboundedModuleError):
    """A filter or a matrix that is not the one its stored parameters define."""


def described(model: nn.Module, shape: tuple[int, ...]) -> Iterator[tuple[str, Layer]]:
    """(name, description) of each layer in the order they run, one at a time: filters are large.

    Args:
        model: in float64 and eval mode, on the CPU.
        shape: of one image.
    """
    for name, module in chain(model):
        kind = kind_of(module)
        if kind not in _KINDS:
            given = f"{type(module).__module__}.{type(module).__qualname__}"
            known = ", ".join(sorted(_KINDS))
            raise UnboundedModuleError(
                f"'{name}' ({given}) cannot be proven in ball arithmetic: known are {known}; check it in float64, "
                "without --arithmetic"
            )
        layer = _KINDS[kind](module, shape, name)
        yield name, layer
        shape = _shape_after(module, kind, shape)


def _array(value: Tensor) -> Floats:
    return np.ascontiguousarray(value.detach().cpu().double().numpy())


def _bias(module: Any) -> Floats | None:
    return None if module.bias is None else _array(module.bias)


def _belongs(good: bool, name: str, what: str) -> None:
    if not good:
        raise ForeignOperatorError(
            f"the {what} of '{name}' is not the one that its stored parameters define: is it a leftover of others?"
        )


def _size_met(shape: tuple[int, ...], stride: tuple[int, ...], adjoint: bool) -> tuple[int, ...]:
    """The size of the images that a polynomial is applied to: after psi, or before its adjoint."""
    return tuple(shape[1:]) if adjoint else tuple(n // s for n, s in zip(shape[1:], stride, strict=True))


def _torus(size: tuple[int, ...], geometry: Any) -> tuple[int, ...]:
    """A torus that holds images of this size, with room for the taps where zeros surround them."""
    room = [d * (k // 2) for d, k in zip(geometry.dilation, geometry.kernel, strict=True)]
    circular = geometry.padding_mode == "circular"
    return tuple(n if circular else n + r for n, r in zip(size, room, strict=True))


def _skew(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    size = _size_met(shape, module.stride, module.transposed)
    weight, p = _array(module.weight), module.polynomial(size=size)
    kernel = weight.shape[2:]
    if all(k % 2 for k in module.kernel_size):
        free = None if module.free is None else _array(module.free)
        raw = skew_filter(free, _array(module.centre), kernel, weight.shape[1])
        _belongs(same_up_to_scale(weight, raw), name, "filter")
    return SkewExponential(
        weight,
        tuple(p.coefficients),
        p.norm_bound,
        p.series,
        module.read_channels if module.transposed else module.kept_channels,
        tuple(module.stride),
        _bias(module),
        module.padding_mode,
        tuple(module.dilation),
        module.groups,
        module.transposed,
        # An interval that is shorter than the bound that the filter was scaled to is that of images of this size.
        torus=_torus(size, module.geometry) if p.norm_bound < module.norm_bound else None,
    )


def _frozen_dense(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    return Dense(_array(module.weight), tuple(module.output_shape), _bias(module))


def _frozen_series(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    p, g, weight = module.polynomial, module.geometry, _array(module.weight)
    blocks = weight.reshape(g.groups, -1, *weight.shape[1:])
    mirrored = np.flip(blocks.swapaxes(1, 2), tuple(range(3, blocks.ndim)))
    if not np.array_equal(blocks, -mirrored):
        raise UnboundedModuleError(f"the filter of '{name}' is not skew-symmetric")
    return SkewExponential(
        weight,
        tuple(p.coefficients),
        p.norm_bound,
        p.series,
        module.read_channels if module.upsamples else module.kept_channels,
        tuple(module.stride),
        _bias(module),
        g.padding_mode,
        tuple(g.dilation),
        g.groups,
        module.upsamples,
        # Of the image at hand, whatever the layer says of it.
        torus=_torus(_size_met(shape, module.stride, module.upsamples), g),
    )


def _orthogonal_linear(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    weight = _array(module.weight)
    _belongs(same(weight, exponential_rows(_array(module.generator), *weight.shape)), name, "matrix")
    return Linear(weight, _bias(module))


def _normalized_linear(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    weight, raw = _array(module.weight), _array(module.raw_weight)
    # A row of zeros stays one.
    raw = raw / np.where(raw.any(1, keepdims=True), np.abs(raw).max(1, keepdims=True), 1.0)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    _belongs(same(weight, raw / np.where(lengths > 0, lengths, 1.0)), name, "matrix")
    return Linear(weight, _bias(module))


def _cayley(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    matrices = module.frequency_matrices(shape).detach().numpy().astype(np.complex128)
    return Spectral(matrices, shape[2] // module.stride, (module.stride,) * 2, _bias(module))


def _aol(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    weight, raw = _array(module.weight), _array(module.raw_weight)
    raw = raw / max(float(np.abs(raw).max()), np.finfo(np.float64).tiny)
    roots = inverse_roots_of_row_sums(raw)
    _belongs(same_up_to_scale(weight, raw * roots[:, None, None]), name, "filter")
    return RowSumConvolution(weight, (module.stride,) * 2, _bias(module), module.padding_mode, 1 / roots)


def _sll(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    q = np.exp(np.clip(_array(module.log_q), -300, 300))
    common = (module.out_channels, (module.stride,) * 2, module.padding_mode, q)
    return ResidualStep(_array(module.weight), _array(module.scale), _bias(module), *common)


def _frozen_residual(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    scale = _array(module.scale)
    if scale.ndim == 0:
        raise UnboundedModuleError(
            f"'{name}' (a frozen CPL2d) cannot be proven in ball arithmetic, as its scale rests on the symbol of its "
            "filter; check it in float64, without --arithmetic"
        )
    common = (module.output_shape[0], (module.stride,) * 2, module.padding_mode, None)
    return ResidualStep(_array(module.weight), scale, _bias(module), *common)


def _on_channels(module: Any, shape: tuple[int, ...], name: str) -> None:
    if module.dim % (len(shape) + 1) != 1:
        raise UnboundedModuleError(
            f"'{name}' acts on axis {module.dim}, and the proof in balls knows it on channels only, axis 1; check it "
            "in float64, without --arithmetic"
        )


def _householder(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    _on_channels(module, shape, name)
    return Fold(_array(module.theta))


def _normalize(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    if max(module.std.numel(), module.mean.numel()) > 1:
        _on_channels(module, shape, name)
    return Normalisation(_array(module.mean).reshape(-1), _array(module.std).reshape(-1))


def _batch_norm(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    if module.running_var is None:
        raise UnboundedModuleError(f"'{name}' has no running statistics: it divides each image by its own deviation")
    variance = _array(module.running_var)
    weight = np.ones_like(variance) if module.weight is None else _array(module.weight)
    bias = np.zeros_like(variance) if module.bias is None else _array(module.bias)
    return BatchNorm(_array(module.running_mean), variance, module.eps, weight, bias)


def _axis(module: Any, shape: tuple[int, ...]) -> int:
    axis = int(module.dim % (len(shape) + 1))
    if axis == 0:
        raise UnboundedModuleError(f"a {type(module).__name__} acts on axis {module.dim}, that of the batch")
    return axis


def _flatten(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    if module.start_dim != 1 or module.end_dim != -1:
        raise UnboundedModuleError(f"'{name}' flattens axes {module.start_dim} to {module.end_dim}: use nn.Flatten()")
    return Rearrangement(lambda x: x.reshape(len(x), -1))


def _downsample(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    stride = (module.stride,) * (len(shape) - 1) if isinstance(module.stride, int) else module.stride
    return Rearrangement(lambda x: unshuffled(x, stride))


def _zero_pad(module: Any, shape: tuple[int, ...], name: str) -> Layer:
    left, right, top, bottom = module.padding
    if min(module.padding) < 0:
        raise UnboundedModuleError(f"'{name}' cuts pixels off: pad by 0 or more")
    return Rearrangement(lambda x: np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))))


def _nothing(x: Integers) -> Integers:
    return x


_KINDS: dict[str, Callable[[Any, tuple[int, ...], str], Layer]] = {
    **dict.fromkeys(("SOC1d", "SOC2d", "SOC3d", "SOCTranspose1d", "SOCTranspose2d", "SOCTranspose3d"), _skew),
    "FrozenDense": _frozen_dense,
    "FrozenSeries": _frozen_series,
    "BCOP2d": lambda module, shape, name: Circular(_array(module.weight), (module.stride,) * 2, _bias(module)),
    "Cayley2d": _cayley,
    "AOL2d": _aol,
    "SLL2d": _sll,
    "FrozenResidual": _frozen_residual,
    "OrthogonalLinear": _orthogonal_linear,
    "NormalizedLinear": _normalized_linear,
    "Linear": lambda module, shape, name: Linear(_array(module.weight), _bias(module)),
    "Normalize": _normalize,
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), _batch_norm),
    "MaxMin": lambda module, shape, name: MaxMin(_axis(module, shape)),
    "GroupSort": lambda module, shape, name: SortedGroups(module.group_size, _axis(module, shape)),
    "Householder": _householder,
    "ReLU": lambda module, shape, name: Rectifier(),
    "Flatten": _flatten,
    "InvertibleDownsample": _downsample,
    "ZeroPad2d": _zero_pad,
    **dict.fromkeys(
        ("Identity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d"),
        lambda module, shape, name: Rearrangement(_nothing),
    ),
}


def _shape_after(module: Any, kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one output."""
    if kind.startswith("Frozen"):
        return tuple(module.output_shape)
    if kind in ("BCOP2d", "Cayley2d", "AOL2d", "SLL2d") or kind.startswith("SOC"):
        stride = (module.stride,) * (len(shape) - 1) if isinstance(module.stride, int) else module.stride
        if kind.startswith("SOCTranspose"):
            return (module.out_channels, *(n * s for n, s in zip(shape[1:], stride, strict=True)))
        return (module.out_channels, *(n // s for n, s in zip(shape[1:], stride, strict=True)))
    if kind == "InvertibleDownsample":
        stride = (module.stride,) * (len(shape) - 1) if isinstance(module.stride, int) else module.stride
        return (shape[0] * math.prod(stride), *(n // s for n, s in zip(shape[1:], stride, strict=True)))
    if kind == "ZeroPad2d":
        left, right, top, bottom = module.padding
        return (shape[0], shape[1] + top + bottom, shape[2] + left + right)
    if kind == "Flatten":
        return (math.prod(shape),)
    if kind.endswith("Linear"):
        return (*shape[:-1], module.weight.shape[0])
    return shape


def chain(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """(name, layer) in the order they run, for a model that is known to be a chain."""
    held = held_model(module)
    doubt = None if held is not None else reason_to_doubt(module)
    if doubt is not None:
        raise UnboundedModuleError(f"certificates of '{path}' ({type(module).__name__}) cannot be checked: {doubt}")
    links: Any
    if held is not None:
        links = [held]
    elif kind_of(module) in ("LipConvnet", "ResNet"):
        links = [(name, getattr(module, name)) for name in ("body", "head")]
    elif kind_of(module) == "FrozenModel":
        links = [("model", module.model)]
    elif kind_of(module) == "Sequential":
        links = module._modules.items()  # a module that is held twice runs twice
    else:
        yield path, module
        return
    for name, child in links:
        yield from chain(child, f"{path}.{name}" if path else name)


def kind_of(module: nn.Module) -> str:
    """The name of a class of PyTorch's or of this package; a class from elsewhere may only be called so."""
    kind = type(module)
    return kind.__name__ if kind.__module__.startswith(("torch.nn.modules.", "skewconv.")) else ""
