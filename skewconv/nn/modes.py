"""A model in eval mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode inside, and as it was afterwards.

    >>> from torch import nn
    >>> layer = nn.Dropout()
    >>> with evaluating(layer):
    ...     layer.training
    False
    >>> layer.training
    True
    """
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = False
        yield
    finally:
        for module, training in flags:
            module.training = training
