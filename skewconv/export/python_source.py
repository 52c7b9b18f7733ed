"""The Python text of a plain network: the classes that it uses, and the expression that builds it."""

import inspect
import textwrap
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.export import plain_layers
from skewconv.export.plain_layers import Network
from skewconv.nn.module_tools import arguments, constructor_names


def flat(module: nn.Module) -> nn.Sequential:
    """Chains of chains as one, numbered from 0, so that names in a file are short and say the order."""
    return nn.Sequential(*_links(module))


def _links(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.Sequential):
        return [link for child in module for link in _links(child)]
    if isinstance(module, plain_layers.ResidualSum):
        parts = (module.activation, module.residual, module.shortcut)
        return [plain_layers.ResidualSum(*(None if part is None else flat(part) for part in parts))]  # type: ignore[arg-type]
    return [module]


def class_sources(network: Network) -> str:
    """The text of every class of ours that the network uses, in the order of their file."""
    used = {type(module) for module in network.modules()}
    kinds = [kind for kind in vars(plain_layers).values() if isinstance(kind, type) and kind in used]
    ours = [kind for kind in kinds if kind.__module__ == plain_layers.__name__]
    return "\n\n".join(inspect.getsource(kind) for kind in ours)


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
    prefix = "" if type(value).__module__ == plain_layers.__name__ else "nn."
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
