"""SDP-based Lipschitz layers (SLL): a residual convolution scaled by the absolute row sums of its filter's Gram."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.checks import IntOrTuple
from skewconv.nn.eval_operator import Size
from skewconv.nn.precision import at_precision
from skewconv.nn.residual_conv import LARGEST_SCALE, ResidualConv2d
from skewconv.ops.gram_row_sums import gram_row_sums, gram_row_sums_upper_bound


class SLL2d(ResidualConv2d):
    """y = x - 2 W T^-1 relu(W^T x + b) with T_ii = sum_j |W^T W|_ij q_j / q_i, q positive and learned.

    >>> from skewconv.nn.gains import gain_bounds
    >>> layer = SLL2d(4, 4, 3).eval()
    >>> layer(torch.randn(1, 4, 8, 8)).shape, gain_bounds(layer.lower((4, 8, 8)))[1]
    (torch.Size([1, 4, 8, 8]), 1.0)

    T - W^T W has a dominant diagonal once it is scaled by q, so that T^(-1/2) W^T W T^(-1/2) <= I: the layer is
    1-Lipschitz (see :mod:`skewconv.nn.residual_conv`), for both paddings and every image size. In eval mode the row
    sums are rounded up and their inverses down, to what is stored; there is no epsilon.

    Args:
        in_channels, out_channels: the residual has max(in_channels * stride^2, out_channels) channels: missing ones are
            zero, surplus ones are dropped.
        kernel_size: k, for a k x k filter, odd or even; the padding keeps the size.
        stride: by invertible downsampling.
        padding, dilation, groups: as in nn.Conv2d, where they mean what the layer does: padding "same" or its number,
            no dilation, one group.
        bias: whether there is a b.
        padding_mode: "zeros" or "circular".
        hidden_channels: of relu; as many as the residual has by default.
        device, dtype: as in nn.Conv2d.

    Reference: Araujo, Havens, Delattre, Allauzen, Hu, "A unified algebraic perspective on Lipschitz neural networks",
    2023. Their T has 1e-6 in it, which makes the layer slightly more than 1-Lipschitz.
    """

    log_q: nn.Parameter

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrTuple, *places: Any, **options: Any
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, *places, **options)
        self.log_q = nn.Parameter(self.weight.new_empty(self.hidden_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As in nn.Conv2d; the bias is zero and q is one."""
        super().reset_parameters()
        nn.init.zeros_(self.log_q)

    def _sources(self) -> list[Tensor]:
        return [self.weight, self.log_q]

    def _operator_form(self, size: Size) -> tuple[tuple[int, ...], torch.dtype]:
        return (self.hidden_channels,), self.weight.dtype

    def _estimated_scale(self, sources: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        weight, log_q = (at_precision(source, dtype) for source in sources)
        sums = gram_row_sums(weight.transpose(0, 1), log_q.exp())
        # A channel without weights has nothing to scale.
        return torch.where(sums > 0, 1 / sums.clamp_min(1 / LARGEST_SCALE), 0.0)

    def _scale_lower_bound(self, sources: Sequence[Tensor]) -> Tensor:
        weight, log_q = sources
        # Any positive q will do, so it is taken as it is computed.
        q = log_q.detach().cpu().double().clamp(-300, 300).exp()
        # 1 / r errs by u and is rounded down later by more than that.
        return 1 / gram_row_sums_upper_bound(weight.transpose(0, 1), q)
