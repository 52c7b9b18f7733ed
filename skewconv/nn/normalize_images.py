"""The normalisation of images as a module, so that its factor is in the Lipschitz bound once and only once."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from skewconv.errors import ArgumentError, ShapeError


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

    def extra_repr(self) -> str:
        return f"mean={self.mean.tolist()}, std={self.std.tolist()}, dim={self.dim}"
