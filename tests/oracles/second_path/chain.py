"""Which layers a model runs, one after the other."""

from collections.abc import Iterator
from typing import Any

from torch import nn


def chain(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """(name, layer) in the order they run, for a model that is known to be a chain."""
    links: Any
    if kind_of(module) in ("LipConvnet", "ResNet"):
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
