"""What can be measured of a layer's Lipschitz constant: lower bounds, by ascent, and singular values of small maps."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from skewconv.ops.dense_matrices import dense_matrix
from skewconv.rigor import MILLIONS_DOWN

_TINY = 1e-200


def lipschitz_lower_bound(
    function: Callable[[Tensor], Tensor],
    input_shape: tuple[int, ...],
    *,
    steps: int = 30,
    restarts: int = 8,
    seed: int = 0,
    images: bool = False,
) -> float:
    """The largest ||f(x) - f(y)|| / ||x - y|| found: a measured lower bound of the Lipschitz constant.

    >>> round(lipschitz_lower_bound(lambda x: 3 * x, (2,)), 6)
    3.0

    The difference d = y - x climbs the gradient of ||f(x + d) - f(x)|| at constant length, which is power iteration if
    f is linear; the place x climbs with it.

    Args:
        function: (n, *input_shape) -> (n, *output), float64, differentiable.
        input_shape: of one input.
        steps: of the ascent.
        restarts: pairs that climb together, at distances from 1e-3 to 10.
        images: start from uniform images in [0, 1] instead of normal numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    shape, ones = (restarts, *input_shape), (1,) * len(input_shape)
    draw = torch.rand if images else torch.randn
    x = draw(shape, generator=generator, dtype=torch.float64)
    length = torch.logspace(-3, 1, restarts, dtype=torch.float64).view(-1, *ones)
    d = _scaled(torch.randn(shape, generator=generator, dtype=torch.float64), length)
    best = 0.0
    for _ in range(steps):
        x, d = x.detach().requires_grad_(), d.detach().requires_grad_()
        y = x + d
        # A function may work in place, which a point that gradients are taken at cannot bear.
        change = torch.linalg.vector_norm((function(y.clone()) - function(x.clone())).flatten(1), dim=1)
        # The points are rounded, so the distance is that of the points themselves.
        distance = torch.linalg.vector_norm((y - x).detach().flatten(1), dim=1)
        best = max(best, float((change.detach() / distance).max()))
        if not change.requires_grad:
            break
        place, direction = torch.autograd.grad(change.sum(), (x, d))
        flat = direction.flatten(1).norm(dim=1) > _TINY
        d = torch.where(flat.view(-1, *ones), _scaled(direction, length), d)
        x = x + 0.1 * _scaled(place, x.detach().flatten(1).norm(dim=1).view(-1, *ones))
    # A quotient of norms of float64 differences is right to far better than this.
    return best * MILLIONS_DOWN


def _scaled(x: Tensor, length: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(x.flatten(1), dim=1).view_as(length)
    return x * (length / norms.clamp_min(_TINY))


def singular_values(module: nn.Module, input_shape: tuple[int, ...]) -> tuple[float, float]:
    """(smallest, largest) of the matrix of an affine module in float64, computed with its full matrix."""
    with torch.no_grad():
        origin = module(torch.zeros(1, *input_shape, dtype=torch.float64))
        matrix = dense_matrix(lambda x: module(x) - origin, input_shape)
    values = torch.linalg.svdvals(matrix)
    return float(values[-1]), float(values[0])
