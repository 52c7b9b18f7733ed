"""State dicts of other code: read from a file without executing anything in it, and cut into the entries of a layer."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from skewconv.errors import SkewconvError
from skewconv.extras import optional

State: TypeAlias = Mapping[str, Tensor]

# What trainers put a state dict under when they save more than that; "net" is LConvNet's.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
# What nn.DataParallel, DistributedDataParallel and torch.compile put before every name.
_PREFIXES = ("module.", "_orig_mod.")
_SHOWN = 6


class ForeignWeightsError(SkewconvError):
    """Weights of other code that cannot become a layer or a network of this library."""


def read_state_dict(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a file of `torch.save` or of safetensors, on the CPU; nothing in the file is executed.

    A state dict that a trainer stored under "state_dict", "model" or "net", and the prefixes of DataParallel and
    torch.compile, are understood.

    Args:
        path: of the file.

    Raises:
        ForeignWeightsError: there is no such file, or no state dict in it.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ForeignWeightsError(f"{path} is not a file: give a state dict, saved by torch.save or as safetensors")
    try:
        if file.suffix == ".safetensors":
            return plain_state_dict(optional("safetensors.torch", "safetensors").load_file(file))
        return plain_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except ForeignWeightsError:
        raise
    except pickle.UnpicklingError as error:
        raise ForeignWeightsError(
            f"{path} holds more than tensors, or is no file of torch.save: in the code that made it, "
            "torch.save(model.state_dict(), FILE), and give that"
        ) from error
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ForeignWeightsError(f"{path} is damaged, or no file of torch.save or safetensors: {reason}") from error


def plain_state_dict(found: Any) -> dict[str, Tensor]:
    """The tensors by name, without what a trainer or a wrapper put around them."""
    if isinstance(found, Mapping):
        for name in _WRAPPERS:
            if isinstance(found.get(name), Mapping):
                return plain_state_dict(found[name])
    if not isinstance(found, Mapping) or not found:
        raise ForeignWeightsError(f"a state dict maps names to tensors; this is a {type(found).__name__}")
    state = {str(name): value for name, value in found.items()}
    if wrong := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        kind = type(state[wrong[0]]).__name__
        raise ForeignWeightsError(f"a state dict maps names to tensors; here {wrong[0]!r} is a {kind}")
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def under(state: State, prefix: str) -> dict[str, Tensor]:
    """The entries whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def entry(state: State, name: str, layer: str) -> Tensor:
    """One tensor of a layer, checked to be of numbers.

    Args:
        state: the entries of the layer.
        name: of the tensor.
        layer: what the layer is, for the error.
    """
    if name not in state:
        raise ForeignWeightsError(f"{layer} needs the entry {name!r}; there are {names_of(state)}")
    value = state[name].detach()
    if not value.is_floating_point():
        raise ForeignWeightsError(f"{name!r} of {layer} is {value.dtype}: weights are floating-point numbers")
    if not bool(torch.isfinite(value).all()):
        raise ForeignWeightsError(f"{name!r} of {layer} holds NaN or infinity: its training diverged")
    # Half precision is what some trainers keep; a network here is float32 or better.
    return value.to(torch.promote_types(value.dtype, torch.float32))


def names_of(state: State) -> str:
    """The names of the entries, for an error: the first few, and how many there are."""
    names = sorted(state)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) + more) or "none"
