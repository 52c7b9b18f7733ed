"""The bound and the float64 program of a module of somebody's own, by its graph."""

import torch
from torch import nn

from skewconv.errors import UnboundedModuleError
from skewconv.nn.graph.tracing import graph_links
from skewconv.nn.module_tools import first_tensor, float64_copy
from skewconv.nn.protocol.bounds import lipschitz_upper_bound
from skewconv.nn.protocol.program import Float64Program
from skewconv.nn.protocol.questions import chain_program
from skewconv.nn.protocol.rules import Links, Shape
from skewconv.rigor import product_up

# Two evaluations in float64 agree far better than this, and different functions hardly ever so well.
_TOLERANCE = 1e-9


def graph_bound(model: nn.Module, input_shape: Shape) -> float:
    """A proven Lipschitz constant of a module in eval mode, from the graph of its forward."""
    plain = float64_copy(model, first_tensor(model).device)
    links = graph_links(plain)
    _refuse_another_function(plain, links, input_shape)
    x, factors = torch.zeros(1, *input_shape, dtype=torch.float64, device=first_tensor(plain).device), []
    for _, part in links:
        factors.append(lipschitz_upper_bound(part, tuple(x.shape[1:])))
        with torch.no_grad():
            x = part(x)
    return product_up(factors)


def graph_program(module: nn.Module, input_shape: Shape, path: str = "") -> Float64Program:
    """The float64 program of a module in eval mode and float64, from the graph of its forward."""
    links = graph_links(module)
    program = chain_program(links, input_shape, path)
    _refuse_another_function(module, links, input_shape)
    return program


def _refuse_another_function(model: nn.Module, links: Links, shape: Shape) -> None:
    """Compare the model on a batch with its parts one after the other."""
    generator, device = torch.Generator().manual_seed(0), first_tensor(model).device
    for scale in (0.1, 1.0, 10.0):
        x = scale * torch.randn(3, *shape, generator=generator, dtype=torch.float64).to(device)
        with torch.no_grad(), torch.random.fork_rng([]):
            whole, y = model(x.clone()), x.clone()
            for _, part in links:
                y = part(y)
        size = 1 + float(torch.nan_to_num(whole).abs().max())
        if whole.shape != y.shape or not torch.allclose(whole, y, rtol=0.0, atol=_TOLERANCE * size, equal_nan=True):
            raise UnboundedModuleError(
                "its graph computes something else on a batch, as where images are mixed, numbers are drawn, or a "
                "value is changed in place and used again"
            )
