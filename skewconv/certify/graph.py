"""A Lipschitz bound for any module from the graph of its forward, whatever its class may say of itself."""

from torch import nn

from skewconv.errors import UnboundedModuleError
from skewconv.nn.graph import graph_bound


def graph_upper_bound(model: nn.Module, input_shape: tuple[int, ...]) -> float:
    """A proven Lipschitz constant of a module in eval mode from the graph of its forward.

    >>> import torch
    >>> class Block(nn.Module):
    ...     def forward(self, x):
    ...         return x + torch.relu(x)
    >>> 2.0 <= graph_upper_bound(Block(), (3,)) < 2.0 + 1e-12
    True

    :func:`skewconv.nn.lipschitz_upper_bound` does the same for modules of which nothing else is known.

    Raises:
        UnboundedModuleError: an operation or module has no known bound, has hooks, or the forward cannot be traced.
    """
    try:
        return graph_bound(model, tuple(input_shape))
    except UnboundedModuleError as error:
        raise UnboundedModuleError(f"no Lipschitz bound is known for {type(model).__name__}: {error}") from error
