"""How an operation of a graph is refused."""

import torch.fx

from skewconv.errors import UnboundedModuleError


def refused(node: torch.fx.Node, reason: str) -> UnboundedModuleError:
    """The refusal of one operation, by name, with the remedy."""
    name = getattr(node.target, "__name__", node.target)
    return UnboundedModuleError(
        f"the operation '{node.name}' ({name}) in its forward: {reason}; write it with layers and operations that are "
        "known (sums, cat, multiples, views, means, layers of torch.nn and skewconv.nn)"
    )
