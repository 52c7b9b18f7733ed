"""Layers that are primitives as they are: normalisation of images, invertible downsampling, and activations."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.checks import IntOrTuple
from skewconv.errors import ArgumentError, ShapeError
from skewconv.ops.permutations import check_stride, invertible_downsample, invertible_upsample, sorted_halves
from skewconv.ops.torch_modes import in_format_of
from skewconv.rigor import round_down, round_up


def _axis(layer: Any, x: Tensor) -> int:
    if not -x.dim() <= layer.dim < x.dim():
        kind = type(layer).__name__
        raise ShapeError(f"{kind} takes its channels from axis {layer.dim}, but the input has shape {tuple(x.shape)}")
    return int(layer.dim % x.dim())


class Normalize(nn.Module):
    """x -> (x - mean) / std, channel by channel: the first module of a model that takes images in [0, 1].

    >>> import torch
    >>> normalize = Normalize(mean=(0.5, 0.5, 0.5), std=0.25)
    >>> normalize(torch.ones(1, 3, 2, 2))[0, :, 0, 0]
    tensor([2., 2., 2.])

    Args:
        mean, std: a number for all channels, or one for each; std > 0.
        dim: the axis of the channels; -3 is right for images with and without a batch axis.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        mean: float | Sequence[float] | Tensor,
        std: float | Sequence[float] | Tensor,
        dim: int = -3,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dtype = dtype or torch.get_default_dtype()
        # Checked on the CPU, because a tensor on the meta device has no values.
        mean, std = (torch.as_tensor(t, dtype=dtype, device="cpu").detach().clone() for t in (mean, std))
        for name, value in (("mean", mean), ("std", std)):
            if value.dim() > 1 or value.numel() == 0 or not bool(torch.isfinite(value).all()):
                raise ArgumentError(f"{name} must be a finite number, or one for each channel, got {value.tolist()}")
        if bool((std <= 0).any()):
            raise ArgumentError(f"std must be > 0 in every channel, got {std.tolist()}")
        if mean.dim() == std.dim() == 1 and len(mean) != len(std):
            raise ShapeError(f"mean has {len(mean)} channels and std has {len(std)}; give as many of each")
        self.dim = dim
        # That of a new tensor: torch 2.6 has a default device that knows nothing of `with torch.device(...)`.
        device = torch.empty(0).device if device is None else device
        self.register_buffer("mean", mean.to(device))
        self.register_buffer("std", std.to(device))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self._spread(self.mean, x)) / self._spread(self.std, x)

    def gain_bounds(self, input_shape: tuple[int, ...] | None = None) -> tuple[float, float]:
        """(1 / max(std), 1 / min(std)), rounded outward."""
        least, most = float(self.std.min()), float(self.std.max())
        if not (math.isfinite(least) and least > 0):
            return 0.0, math.inf
        return round_down(1 / Fraction(most)), round_up(1 / Fraction(least))

    def _spread(self, value: Tensor, x: Tensor) -> Tensor:
        """The value with its channels on the axis of the channels of x."""
        axis = _axis(self, x)
        if value.dim() == 0:
            return value
        if x.shape[axis] != len(value):
            raise ShapeError(
                f"Normalize has {len(value)} channels, but the input {tuple(x.shape)} has {x.shape[axis]} of them on "
                f"axis {self.dim}"
            )
        return value.view(-1, *(1,) * (x.dim() - 1 - axis))

    def extra_repr(self) -> str:
        return f"mean={self.mean.tolist()}, std={self.std.tolist()}, dim={self.dim}"


class InvertibleDownsample(nn.Module):
    """psi: (batch, c, *size) -> (batch, c * prod(stride), *size / stride), a permutation of the entries.

    >>> import torch
    >>> InvertibleDownsample(2)(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 12, 4, 4])

    Args:
        stride: an integer for every spatial axis (batched input, 1 to 3 axes), or a tuple with one for each axis
            (unbatched input is then understood too).

    Reference: Jacobsen, Smeulders, Oyallon, "i-RevNet", 2018.
    """

    def __init__(self, stride: IntOrTuple) -> None:
        super().__init__()
        check_stride(stride)
        self.stride = stride if isinstance(stride, int) else tuple(stride)

    def forward(self, x: Tensor) -> Tensor:
        return in_format_of(x, invertible_downsample(x, self.stride), self)

    def inverse(self, y: Tensor) -> Tensor:
        """x with forward(x) == y."""
        return in_format_of(y, invertible_upsample(y, self.stride), self)

    def gain_bounds(self, input_shape: tuple[int, ...] | None = None) -> tuple[float, float]:
        """(1, 1)."""
        return 1.0, 1.0

    def extra_repr(self) -> str:
        return f"stride={self.stride}"


class Folding(nn.Module):
    """An activation that folds its input along the axis ``dim`` of the channels, and moves no two points apart.

    Counted from the end the axis also takes unbatched input: ``dim=-3`` for images with and without a batch axis.
    """

    dim: int

    def gain_bounds(self, input_shape: tuple[int, ...] | None = None) -> tuple[float, float]:
        """(0, 1): gradients keep their norms, and points on two sides of a fold may meet."""
        return 0.0, 1.0

    def _halves(self, x: Tensor) -> tuple[Tensor, ...]:
        channels = x.shape[_axis(self, x)]
        if channels % 2:
            raise ShapeError(
                f"{type(self).__name__} pairs the two halves of the channels and needs an even number, got {channels} "
                f"on axis {self.dim} of {tuple(x.shape)}; change the width"
            )
        return x.chunk(2, self.dim)


class MaxMin(Folding):
    """MaxMin(A, B) = (max(A, B), min(A, B)) for the two halves A, B of the channels.

    >>> import torch
    >>> MaxMin()(torch.tensor([[1.0, 5.0, 3.0, 4.0]]))
    tensor([[3., 5., 1., 4.]])

    Its Jacobian is a permutation wherever A != B, so it is 1-Lipschitz and preserves the norm of gradients.

    Reference: Anil, Lucas, Grosse, "Sorting out Lipschitz function approximation", 2019; here in the order of the
    appendix of Singla & Feizi, 2021.
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        self._halves(x)
        return sorted_halves(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class GroupSort(Folding):
    """Sort each group of consecutive channels, smallest first.

    >>> import torch
    >>> GroupSort()(torch.tensor([[5.0, 1.0, 3.0, 4.0]]))
    tensor([[1., 5., 3., 4.]])

    Args:
        group_size: channels in a group, dividing the number of channels; None or -1 sorts all of them (FullSort).

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
        axis = _axis(self, x)
        if x.shape[axis] % self.group_size:
            raise ShapeError(
                f"GroupSort needs a number of channels divisible by group_size={self.group_size}, got {x.shape[axis]} "
                f"on axis {self.dim} of {tuple(x.shape)}; change the width or the group_size"
            )
        groups = x.reshape(*x.shape[:axis], x.shape[axis] // self.group_size, self.group_size, *x.shape[axis + 1 :])
        return groups.sort(axis + 1).values.reshape(x.shape)

    def extra_repr(self) -> str:
        return f"group_size={self.group_size}, dim={self.dim}"


class Householder(Folding):
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
        (a, b), axis = self._halves(x), _axis(self, x)
        if x.shape[axis] != self.channels:
            raise ShapeError(
                f"Householder({self.channels}) got {x.shape[axis]} channels on axis {self.dim} of {tuple(x.shape)}"
            )
        for theta in self.theta:
            half = (theta / 2).view(-1, *(1,) * (x.dim() - 1 - axis))
            sine, cosine = half.sin(), half.cos()
            twice = 2 * (a * sine - b * cosine).clamp(max=0)
            a, b = a - twice * sine, b + twice * cosine
        return torch.cat([a, b], dim=self.dim).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.channels}, order={self.order}, dim={self.dim}"
