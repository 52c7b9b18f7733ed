"""Activations that preserve the norm of gradients: MaxMin, GroupSort, Householder."""

import math

import torch
from torch import Tensor, nn

from skewconv.errors import ArgumentError, ShapeError
from skewconv.ops.maxmin import sorted_halves


class MaxMin(nn.Module):
    """MaxMin(A, B) = (max(A, B), min(A, B)) for the two halves A, B of the channels.

    >>> import torch
    >>> MaxMin()(torch.tensor([[1.0, 5.0, 3.0, 4.0]]))
    tensor([[3., 5., 1., 4.]])

    Its Jacobian is a permutation wherever A != B, so it is 1-Lipschitz and preserves the norm of gradients.

    Args:
        dim: the axis of the channels, of even size. Counted from the end it also takes unbatched input: ``dim=-3``
            for images with and without a batch axis.

    Reference: Anil, Lucas, Grosse, "Sorting out Lipschitz function approximation", 2019; here in the order of the
    appendix of Singla & Feizi, 2021.
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        _halves(x, self.dim, "MaxMin")
        return sorted_halves(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class GroupSort(nn.Module):
    """Sort each group of consecutive channels, smallest first.

    >>> import torch
    >>> GroupSort()(torch.tensor([[5.0, 1.0, 3.0, 4.0]]))
    tensor([[1., 5., 3., 4.]])

    Args:
        group_size: channels in a group, dividing the number of channels; None or -1 sorts all of them (FullSort).
        dim: the axis of the channels; counted from the end it also takes unbatched input.

    Reference: Anil, Lucas, Grosse, "Sorting out Lipschitz function approximation", 2019.
    """

    def __init__(self, group_size: int | None = 2, dim: int = 1) -> None:
        super().__init__()
        if group_size not in (None, -1) and (type(group_size) is not int or group_size < 2):
            raise ArgumentError(f"group_size must be an integer >= 2, or None for a full sort, got {group_size!r}")
        self.group_size = None if group_size == -1 else group_size
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        if self.group_size is None:
            return x.sort(self.dim).values
        axis = _axis(x, self.dim, "GroupSort")
        if x.shape[axis] % self.group_size:
            raise ShapeError(
                f"GroupSort needs a number of channels divisible by group_size={self.group_size}, got {x.shape[axis]} "
                f"on axis {self.dim} of {tuple(x.shape)}; change the width or the group_size"
            )
        groups = x.reshape(*x.shape[:axis], x.shape[axis] // self.group_size, self.group_size, *x.shape[axis + 1 :])
        return groups.sort(axis + 1).values.reshape(x.shape)

    def extra_repr(self) -> str:
        return f"group_size={self.group_size}, dim={self.dim}"


class Householder(nn.Module):
    """z -> z if v.z > 0 else z - 2 (v.z) v, with v = (sin(theta/2), -cos(theta/2)), for pairs z across the two halves.

    The plane is folded along a line whose angle is learned; order 2 folds it again along a second line, which gives up
    to four sectors carrying the identity, two reflections and a rotation. Folding is continuous, 1-Lipschitz, and its
    Jacobian is orthogonal almost everywhere.

    >>> import torch
    >>> Householder(2)(torch.tensor([[1.0, 3.0]])).round(decimals=4)
    tensor([[3., 1.]], grad_fn=...)

    Args:
        channels: size of the channel axis, even.
        order: 1 or 2 folds. Order 1 starts as MaxMin; order 2 starts as MaxMin followed by a fold along the
            perpendicular line.
        dim: the axis of the channels; counted from the end it also takes unbatched input.

    Reference: Singla, Singla, Feizi, "Improved deterministic l2 robustness on CIFAR-10 and CIFAR-100", 2022.
    """

    theta: nn.Parameter

    def __init__(
        self,
        channels: int,
        order: int = 1,
        dim: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if order not in (1, 2):
            raise ArgumentError(f"order must be 1 or 2, got {order!r}")
        if channels < 2 or channels % 2:
            raise ShapeError(f"Householder needs an even number of channels, got {channels}; change the width")
        self.channels, self.order, self.dim = channels, order, dim
        self.theta = nn.Parameter(torch.empty(order, channels // 2, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Angles pi/2 (MaxMin) and, for the second fold, 3 pi/2: both folds act, so both angles get gradients."""
        start = torch.tensor([[0.5 * math.pi], [1.5 * math.pi]])[: self.order]
        with torch.no_grad():
            self.theta.copy_(start.expand_as(self.theta))

    def forward(self, x: Tensor) -> Tensor:
        a, b = _halves(x, self.dim, "Householder")
        axis = _axis(x, self.dim, "Householder")
        if x.shape[axis] != self.channels:
            raise ShapeError(
                f"Householder({self.channels}) got {x.shape[axis]} channels on axis {self.dim} of {tuple(x.shape)}"
            )
        for theta in self.theta:
            half = (theta / 2).view(-1, *(1,) * (x.dim() - 1 - axis))
            sine, cosine = half.sin(), half.cos()
            twice = 2 * (a * sine - b * cosine).clamp(max=0)
            a, b = a - twice * sine, b + twice * cosine
        return torch.cat([a, b], dim=self.dim)

    def extra_repr(self) -> str:
        return f"{self.channels}, order={self.order}, dim={self.dim}"


def _axis(x: Tensor, dim: int, name: str) -> int:
    if not -x.dim() <= dim < x.dim():
        raise ShapeError(f"{name} takes its channels from axis {dim}, but the input has shape {tuple(x.shape)}")
    return dim % x.dim()


def _halves(x: Tensor, dim: int, name: str) -> tuple[Tensor, Tensor]:
    channels = x.shape[_axis(x, dim, name)]
    if channels % 2:
        raise ShapeError(
            f"{name} pairs the two halves of the channels and needs an even number, got {channels} on axis {dim} of "
            f"{tuple(x.shape)}; change the width"
        )
    a, b = x.chunk(2, dim)
    return a, b
