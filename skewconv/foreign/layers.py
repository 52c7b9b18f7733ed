"""Layers of the SOC authors' code and of LConvNet, from the entries of their state dicts.

SOC     random_conv_filter (m, m, k, k), bias (c_out), correction (1,), u1, v1, .., u4, v4: vectors of power iterations
BCOP    conv_matrices (2 k - 1, m, m), in LConvNet param_matrices; bias (c_out), mask (2 k - 2, 1, m)
Cayley  weight (c_out, c_in stride^2, k, k), alpha (), bias (c_out)

with m = max(c_in stride^2, c_out).
"""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from skewconv.errors import SkewconvError
from skewconv.extras import optional
from skewconv.nn import BCOP2d, Cayley2d, SOC2d

State: TypeAlias = Mapping[str, Tensor]
_Layer = TypeVar("_Layer", bound=nn.Module)

#: convolutions of the authors' SOC in training
TRAIN_TERMS = 5
# The names under which trainers store a state dict; "net" is LConvNet's.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
# The prefixes of nn.DataParallel, DistributedDataParallel and torch.compile.
_PREFIXES = ("module.", "_orig_mod.")


class ForeignWeightsError(SkewconvError):
    """Weights of other code that cannot become a layer or a network of this library."""


def read_state_dict(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a file of `torch.save` or of safetensors, on the CPU; nothing in the file is executed."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ForeignWeightsError(f"{path} is not a file: give a state dict, saved by torch.save or as safetensors")
    try:
        if file.suffix == ".safetensors":
            found = optional("safetensors.torch", "safetensors").load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ForeignWeightsError(
            f"{path} holds more than tensors, or is no file of torch.save: in the code that made it, "
            "torch.save(model.state_dict(), FILE), and give that"
        ) from error
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ForeignWeightsError(f"{path} is damaged, or no file of torch.save or safetensors: {reason}") from error
    return unwrapped(found)


def unwrapped(found: Any) -> dict[str, Tensor]:
    """The tensors by name, without the wrappers and prefixes of trainers."""
    if not isinstance(found, Mapping) or not found:
        raise ForeignWeightsError(f"a state dict maps names to tensors; this is a {type(found).__name__}")
    for name in _WRAPPERS:
        if isinstance(found.get(name), Mapping):
            return unwrapped(found[name])
    state = {str(name): value for name, value in found.items()}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ForeignWeightsError(f"a state dict maps names to tensors; here {name!r} is a {type(value).__name__}")
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in state):
            state = under(state, prefix)
    return state


def under(state: State, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def names_of(state: State) -> str:
    names = sorted(state)
    return (", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")) or "none"


def entry(state: State, name: str) -> Tensor:
    """One tensor of a layer, in float32 or float64; raises if it is missing, no floating-point tensor or not finite."""
    if name not in state:
        raise ForeignWeightsError(f"the entry {name!r} is missing; there are {names_of(state)}")
    value = state[name].detach()
    if not value.is_floating_point():
        raise ForeignWeightsError(f"{name!r} is {value.dtype}: weights are floating-point numbers")
    if not bool(torch.isfinite(value).all()):
        raise ForeignWeightsError(f"{name!r} of this layer holds NaN or infinity: its training diverged")
    return value.to(torch.promote_types(value.dtype, torch.float32))


def soc_from_authors(
    state: State,
    *,
    in_channels: int | None = None,
    out_channels: int | None = None,
    stride: int = 1,
    eval_terms: int = 12,
) -> SOC2d:
    """Their SOC layer as a SOC2d: the same filter and Taylor polynomial, with a proven norm in place of an estimate.

    >>> import torch
    >>> state = {"random_conv_filter": torch.randn(8, 8, 3, 3), "bias": torch.zeros(8), "correction": torch.ones(1)}
    >>> soc_from_authors(state, in_channels=2, stride=2)
    SOC2d(2, 8, kernel_size=(3, 3), stride=(2, 2), norm_bound=3, in evaluation taylor ...

    Args:
        state: the entries of the layer.
        in_channels: default: the filter's channels / stride^2; give it where there are more outputs than inputs.
        out_channels: default: the length of the bias, or the filter's channels without a bias.
        stride: as in their layer.
        eval_terms: number of convolutions in evaluation.
    """
    raw, bias = entry(state, "random_conv_filter"), _bias(state)
    if raw.dim() != 4 or raw.shape[0] != raw.shape[1] or raw.shape[2] != raw.shape[3] or raw.shape[2] % 2 == 0:
        raise ForeignWeightsError(f"'random_conv_filter' has shape {tuple(raw.shape)}: theirs is (m, m, k, k), k odd")
    out = out_channels or (None if bias is None else len(bias))
    options: dict[str, Any] = {"in_channels": in_channels, "out_channels": out, "stride": stride}
    options |= {"series": "taylor", "train_degree": TRAIN_TERMS, "eval_degree": eval_terms, "bias": bias is not None}
    if "correction" in state:
        options["norm_bound"] = float(entry(state, "correction")) * raw.shape[2]
    return with_bias(SOC2d.from_filter(raw, **options), bias)


def bcop_from_authors(state: State, *, in_channels: int, stride: int = 1) -> BCOP2d:
    """Their BCOP layer as a BCOP2d: the same filter, its matrices iterated until they are orthogonal."""
    return _bcop(entry(state, "conv_matrices"), _bias(state), in_channels, None, stride)


def bcop_from_lconvnet(
    state: State,
    name: str = "",
    *,
    in_channels: int | None = None,
    out_channels: int | None = None,
    stride: int = 1,
    shifted: bool = False,
) -> BCOP2d:
    """A BCOP layer of LConvNet as a BCOP2d: the same filter, its matrices iterated until they are orthogonal.

    Args:
        state: a state dict, of the layer or of a network.
        name: of the layer in the network, such as "conv1.conv".
        in_channels: default: m / stride^2; give it where there are more outputs than inputs.
        out_channels: default: the length of the bias, or m without a bias.
        stride: of the LipschitzConv2d around the layer.
        shifted: accept a kernel of even size, whose output is moved: ours at (i, j) is theirs at (i + 1, j + 1), around
            the border. They pad one pixel more in front, `padding="same"` one more behind.
    """
    layer, matrices_name = (under(state, f"{name}.") if name else state), "param_matrices"
    if matrices_name not in layer:
        places = [key.removesuffix(f".{matrices_name}") for key in state if key.endswith(f".{matrices_name}")]
        found = f"there are {', '.join(places)}" if places else f"the entries are {names_of(state)}"
        raise ForeignWeightsError(f"no BCOP layer of LConvNet, with {matrices_name!r}, is called {name!r}: {found}")
    matrices, bias = entry(layer, matrices_name), _bias(layer)
    kernel, m = (len(matrices) + 1) // 2, matrices.shape[-1]
    if kernel % 2 == 0 and not shifted:
        raise ForeignWeightsError(
            f"the kernel is {kernel} x {kernel}: LConvNet pads even kernels by one pixel more in front, this library "
            "by one more behind, so that the output would be theirs moved by one pixel along both axes; pass "
            "shifted=True to accept that, and torch.roll(y, (1, 1), (-2, -1)) to move it back"
        )
    read = in_channels if in_channels is not None else m // stride**2
    folded, out = read * stride**2, out_channels or (m if bias is None else len(bias))
    if kernel == 1 and folded < out:
        raise ForeignWeightsError(f"LConvNet's own BCOP of kernel size 1 does not run from {folded} to {out} channels")
    # Alone among all its filters, that of one tap between equally many channels is not transposed.
    return _bcop(matrices.mT if kernel == 1 and folded == out else matrices, bias, read, out, stride)


def cayley_from_authors(state: State, *, size: int, stride: int = 1, kernel_size: int | None = None) -> Cayley2d:
    """Their Cayley layer as a Cayley2d.

    Args:
        state: the entries of the layer.
        size: side of its training images: their scale is of the transform at that size, ours of the filter.
        stride: as in their layer, whose kernel is then half as large.
        kernel_size: of the new layer, at least theirs; a smaller filter is padded with zeros.
    """
    weight, alpha, bias = entry(state, "weight"), entry(state, "alpha"), _bias(state)
    kernel, wanted = weight.shape[-1], kernel_size or weight.shape[-1]
    if kernel > wanted or (wanted - kernel) % 2 or weight.shape[1] % stride**2:
        raise ForeignWeightsError(
            f"'weight' has shape {tuple(weight.shape)}: it does not fit stride {stride} and a kernel of {wanted}"
        )
    share = weight.norm() / torch.fft.rfft2(weight, (size // stride,) * 2).norm()
    channels = weight.shape[1] // stride**2, weight.shape[0]
    layer = Cayley2d(*channels, wanted, stride, bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        layer.raw_weight.copy_(nn.functional.pad(weight, ((wanted - kernel) // 2,) * 4))
        layer.alpha.copy_(alpha * share)
    return with_bias(layer, bias)


def _bias(state: State) -> Tensor | None:
    return entry(state, "bias") if "bias" in state else None


def with_bias(layer: _Layer, bias: Tensor | None) -> _Layer:
    own: Any = layer.bias
    if bias is not None:
        if bias.shape != own.shape:
            raise ForeignWeightsError(f"'bias' has shape {tuple(bias.shape)}: the layer needs {tuple(own.shape)}")
        with torch.no_grad():
            own.copy_(bias)
    return layer.eval()


def _bcop(matrices: Tensor, bias: Tensor | None, in_channels: int, out_channels: int | None, stride: int) -> BCOP2d:
    """A BCOP2d from matrices (2 k - 1, m, m): the orthogonal matrix H, then two projectors for each step.

    Theirs and ours multiply H with filters of two taps, A(s) = P + (I - P) s, P a projector of half the rank and s a
    shift by one pixel. For c_in <= c_out theirs is the transpose of a product,

        F = A_n ... A_2 A_1 H^T = H^T (H A_n H^T) ... (H A_1 H^T):

    conjugated by H, in reverse order, the projectors are those of a BCOP2d. For c_in > c_out theirs is
    F = H^T A_1 A_2 ... A_n, as ours. A_1, A_3, .. shift along the width, A_2, A_4, .. along the height: the order
    "lconvnet" of a BCOP2d.
    """
    if matrices.dim() != 3 or matrices.shape[0] % 2 == 0 or matrices.shape[1] != matrices.shape[2]:
        raise ForeignWeightsError(f"the matrices have shape {tuple(matrices.shape)}: theirs is (2 k - 1, m, m)")
    kernel, m = (len(matrices) + 1) // 2, matrices.shape[1]
    folded, out = in_channels * stride**2, out_channels or (m if bias is None else len(bias))
    if max(folded, out) != m:
        raise ForeignWeightsError(
            f"the matrices have {m} rows, but in_channels={in_channels}, stride={stride} and {out} outputs need "
            f"max({folded}, {out}): give the in_channels and the stride that the layer was made with"
        )
    h, *others = polar_factor(matrices)
    layer = BCOP2d(in_channels, out, kernel, stride, bias=bias is not None, order="lconvnet", dtype=matrices.dtype)
    with torch.no_grad():
        layer.raw_orthogonal.copy_(h.T[:out])
        if layer.raw_projectors is not None:
            bases = torch.stack(others)[:, :, : m // 2]
            layer.raw_projectors.copy_((h @ bases).flip(0) if folded <= out else bases)
    return with_bias(layer, bias)


def polar_factor(matrix: Tensor) -> Tensor:
    """The nearest orthonormal matrix, in float64: the limit of Björck's iteration. (*batch, rows, columns)."""
    u, _, v = torch.linalg.svd(matrix.detach().to(torch.float64), full_matrices=False)
    return u @ v
