"""Almost-orthogonal layers (AOL): a filter whose columns are rescaled until it does not expand."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.checks import IntOrTuple
from skewconv.choices import PaddingMode
from skewconv.nn.eval_operator import ProvenOperator, Size, at_precision, compute_dtype
from skewconv.nn.gains import with_gain
from skewconv.nn.primitives import Convolution
from skewconv.nn.proven_conv import ProvenConv2d
from skewconv.ops.convolution import convolve
from skewconv.ops.filters import odd_filter, transpose_filter
from skewconv.ops.gram_row_sums import gram_row_sums, gram_row_sums_upper_bound
from skewconv.ops.torch_modes import without_autocast
from skewconv.rigor import factor_up, power_of_two_scaled


class AOL2d(ProvenConv2d):
    """y = F D x + b with D_ii = r_i^(-1/2), r the absolute row sums of the Gram operator of the filter F.

    >>> import torch
    >>> layer = AOL2d(4, 8, 3, stride=2).eval()
    >>> x = torch.randn(1, 4, 8, 8)
    >>> layer(x).shape, layer.gain_bounds()[1] <= 1
    (torch.Size([1, 8, 4, 4]), True)

    J^T J <= diag(r) makes ||J D|| <= 1, for zeros past the border and around a torus, at every image size (see
    :mod:`skewconv.ops.gram_row_sums`). In eval mode F D is computed in float64, kept until the parameters change, and
    scaled by about one rounding error so that the norm of what is stored is proven to be <= 1. A channel whose weights
    are all zero stays so; there is no epsilon.

    Args:
        in_channels, out_channels, bias, device, dtype: as in nn.Conv2d.
        kernel_size: k, for a k x k filter, odd or even; the padding keeps the size.
        stride: by invertible downsampling.
        padding, dilation, groups: "same" or its number, 1 and 1.
        padding_mode: "zeros" or "circular".

    Reference: Prach & Lampert, "Almost-orthogonal layers for efficient general-purpose Lipschitz networks", 2022.
    """

    raw_weight: nn.Parameter

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrTuple,
        stride: IntOrTuple = 1,
        padding: str | IntOrTuple = "same",
        dilation: IntOrTuple = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        **options: Any,
    ) -> None:
        shared: dict[str, Any] = {"dilation": dilation, "groups": groups, "bias": bias, "padding_mode": padding_mode}
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, **shared, **options)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {"raw_weight": (self.out_channels, self.folded_channels, self.kernel_size, self.kernel_size)}

    def _draw(self) -> None:
        # A matrix at the centre for which nothing is rescaled: with orthonormal columns; or, where there are too many
        # of them, with rows that each add up inputs of their own.
        self.raw_weight.zero_()
        centre = self.raw_weight[:, :, (self.kernel_size - 1) // 2, (self.kernel_size - 1) // 2]
        rows, columns = centre.shape
        if columns <= rows:
            centre.copy_(nn.init.orthogonal_(torch.empty(rows, columns, device=centre.device)))
        else:
            inputs = torch.arange(columns, device=centre.device)
            owner = inputs % rows
            inputs_of_owner = (columns - owner + rows - 1) // rows
            centre[owner, inputs] = inputs_of_owner.to(centre.dtype).rsqrt()

    @property
    def weight(self) -> Tensor:
        """F D in the layout of nn.Conv2d: (c_out, c_in stride^2, k, k)."""
        return self._operator().clone()

    def gain_bounds(self) -> tuple[float, float]:
        """(0, proven norm) in eval mode, for both paddings and every image size."""
        return self._proven().gain

    def lower(self, input_shape: tuple[int, ...], tol: float | None = None) -> Convolution:
        """One convolution with the filter of eval mode."""
        convolution = Convolution(**self._shared(input_shape), weight=self.weight, padding_mode=self.padding_mode)
        return with_gain(convolution, self.gain_bounds())

    def _linear(self, x: Tensor) -> Tensor:
        return convolve(x, self._operator(), padding_mode=self.padding_mode)

    def _linear_adjoint(self, y: Tensor) -> Tensor:
        return convolve(y, transpose_filter(odd_filter(self._operator())), padding_mode=self.padding_mode)

    def _trained(self, sources: Sequence[Tensor], size: Size) -> Tensor:
        return self._rescaled(sources[0], compute_dtype(sources[0])).to(sources[0].dtype)

    def _exact(self, sources: Sequence[Tensor], size: Size) -> Tensor:
        return self._rescaled(sources[0], torch.float64)

    def _rescaled(self, raw: Tensor, dtype: torch.dtype) -> Tensor:
        weight = at_precision(raw, dtype)
        with without_autocast(weight.device):
            return weight * self._inverse_roots(weight)[:, None, None]

    def _inverse_roots(self, weight: Tensor) -> Tensor:
        """D, (c_in,): r^(-1/2), and no more than a power of two for a channel without weights."""
        factor = 1.0
        if not self.training:
            # Squares neither overflow nor vanish; in training, where it would cost a wait for the device, they may.
            factor = 2.0 ** -min(1000, max(-1000, power_of_two_scaled(weight.detach())[1]))
        sums = gram_row_sums(weight * factor)
        return torch.where(sums > 0, sums.clamp_min(torch.finfo(sums.dtype).tiny).rsqrt(), 1.0) * factor

    def _prove(self, sources: Sequence[Tensor], size: Size) -> ProvenOperator:
        raw, exact = sources[0], self._exact(sources, size)
        dtype = raw.dtype
        # With q = 1 / D each row sum of the Gram operator of F D is one, but for rounding; so is then the bound.
        q = 1 / self._inverse_roots(at_precision(raw, torch.float64)).cpu()
        scale = 1.0
        for attempt in range(6):
            stored = (exact * scale).to(dtype)
            square = float(gram_row_sums_upper_bound(stored, q).max())
            norm = square**0.5 * factor_up(8)
            if not norm > 1:
                break
            # Scaling rounds anew, and a filter of few bits only shrinks in steps of its precision.
            scale *= (1 - attempt * torch.finfo(dtype).eps) / (norm * factor_up(8))
        return ProvenOperator(stored.to(raw.device), scale, (0.0, norm))
