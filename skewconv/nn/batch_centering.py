"""Centering by the mean of a batch: batch normalisation without its division, which has no Lipschitz constant."""

import torch
from torch import Tensor, nn

from skewconv.checks import check_counts
from skewconv.errors import ArgumentError, ShapeError

_BATCH_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}


class BatchCentering(nn.Module):
    """x - mean + bias, channel by channel: the mean over batch and pixels in training, the running mean in evaluation.

    >>> layer = BatchCentering(3)
    >>> bool(layer(torch.rand(8, 3, 4, 4)).mean((0, 2, 3)).abs().max() < 1e-6), layer.eval().gain_bounds()
    (True, (1.0, 1.0))

    In evaluation it is a translation, and so an isometry; it is lowered to batch normalisation with a variance of one.

    Args:
        num_features: channels, on axis 1 of batches (n, c) or (n, c, *size).
        momentum: share of a batch in the running mean.
        bias: learned; False for none.
    """

    running_mean: Tensor
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.1,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_counts(num_features=num_features)
        if not 0 <= momentum <= 1:
            raise ArgumentError(f"momentum must be from 0 to 1, got {momentum!r}")
        self.num_features, self.momentum = num_features, momentum
        self.register_buffer("running_mean", torch.zeros(num_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(num_features, device=device, dtype=dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 2 or x.shape[1] != self.num_features:
            raise ShapeError(f"BatchCentering takes (n, {self.num_features}, ...), got {tuple(x.shape)}")
        mean = self.running_mean
        if self.training and x.numel():
            mean = x.mean((0, *range(2, x.dim())))
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
        shift = mean if self.bias is None else mean - self.bias
        return x - shift.view(-1, *(1,) * (x.dim() - 2)).to(x.dtype)

    def gain_bounds(self, input_shape: tuple[int, ...] | None = None) -> tuple[float, float]:
        """(1, 1) in eval mode."""
        return 1.0, 1.0

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> nn.Module:
        if len(input_shape) not in _BATCH_NORMS:
            raise ShapeError(f"input_shape must be (c, *size) with up to three axes, got {tuple(input_shape)}")
        norm = _BATCH_NORMS[len(input_shape)](self.num_features, eps=0.0, affine=False).to(self.running_mean)
        norm.running_mean = (self.running_mean if self.bias is None else self.running_mean - self.bias).detach().clone()
        return norm.eval()

    def extra_repr(self) -> str:
        return f"{self.num_features}, momentum={self.momentum}, bias={self.bias is not None}"
