"""Layers of the SOC authors' code, from the entries of their state dicts.

random_conv_filter (m, m, k, k) with m = max(c_in stride^2, c_out), bias (c_out), correction (1,), and the vectors of
power iterations u1, v1, .., u4, v4, which are not needed here.
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
from skewconv.nn import SOC2d

State: TypeAlias = Mapping[str, Tensor]
_Layer = TypeVar("_Layer", bound=nn.Module)

#: convolutions of the authors' SOC in training
TRAIN_TERMS = 5
# The names under which trainers store a state dict.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
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
