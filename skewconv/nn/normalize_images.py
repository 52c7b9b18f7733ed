"""The normalisation of images as a module, so that its factor is in the Lipschitz bound once and only once."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from skewconv.errors import ArgumentError, ShapeError
from skewconv.nn import plain_layers
from skewconv.nn.plain_parts import on_channels
from skewconv.nn.protocol import NOTHING, Float64Program, Shape, module_program, storable
from skewconv.rigor import UNIT_ROUNDOFF, round_up


@storable()
class Normalize(nn.Module):
    """x -> (x - mean) / std, channel by channel: the first module of a model that takes images in [0, 1].

    >>> import torch
    >>> normalize = Normalize(mean=(0.5, 0.5, 0.5), std=0.25)
    >>> normalize(torch.ones(1, 3, 2, 2))[0, :, 0, 0]
    tensor([2., 2., 2.])
    >>> normalize.lipschitz_upper_bound((3, 2, 2))
    4.0

    Args:
        mean, std: a number for all channels, or one for each; std > 0.
        dim: the axis of the channels; -3 is right for images with and without a batch axis.
    """

    is_affine: ClassVar[bool] = True
    computes_as_stored: ClassVar[bool] = True

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

    def misfit(self) -> str | None:
        """What of mean and deviation would repeat the channels of an image; None if nothing does."""
        shapes = [tuple(value.shape) for value in (self.mean, self.std)]
        good = all(len(shape) <= 1 for shape in shapes)
        return None if good else f"its mean and std have the shapes {shapes[0]} and {shapes[1]}: one number a channel"

    def forward(self, x: Tensor) -> Tensor:
        if not -x.dim() <= self.dim < x.dim():
            raise ShapeError(f"Normalize takes its channels from axis {self.dim}, but the input is {tuple(x.shape)}")
        return (x - self._spread(self.mean, x)) / self._spread(self.std, x)

    def _spread(self, value: Tensor, x: Tensor) -> Tensor:
        """The value with its channels on the axis of the channels of x."""
        if value.dim() == 0:
            return value
        axis = self.dim % x.dim()
        if x.shape[axis] != len(value):
            raise ShapeError(
                f"Normalize has {len(value)} channels, but the input {tuple(x.shape)} has {x.shape[axis]} of them on "
                f"axis {self.dim}"
            )
        return value.view(-1, *(1,) * (x.dim() - 1 - axis))

    def lipschitz_upper_bound(self, input_shape: tuple[int, ...]) -> float:
        """1 / min(std), rounded up."""
        least = float(self.std.min())
        return round_up(1 / Fraction(least)) if math.isfinite(least) and least > 0 else math.inf

    def float64_program(self, input_shape: Shape) -> Float64Program:
        """A difference and a quotient, each right to u: 2 u + u^2 of |(x - mean) / std| at most."""
        plain = module_program(self, input_shape, NOTHING)
        return module_program(self, input_shape, plain.norm.times(3 * UNIT_ROUNDOFF))

    def plain_form(self) -> nn.Module:
        """The same for batches of images."""
        parts = (value.detach().clone().reshape(-1, 1, 1) for value in (self.mean, self.std))
        return on_channels(self, self.dim, plain_layers.Normalize(*parts))

    def settings(self) -> dict[str, Any]:
        """What a file holds of it, beside its tensors."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist(), "dim": self.dim}

    def extra_repr(self) -> str:
        return f"mean={self.mean.tolist()}, std={self.std.tolist()}, dim={self.dim}"
