"""Almost-orthogonal layers (AOL): a filter whose columns are rescaled until it does not expand."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from skewconv.nn.eval_operator import ProvenOperator, Size, at_precision
from skewconv.nn.proven_conv import FilterConv2d
from skewconv.ops.gram_row_sums import gram_row_sums, gram_row_sums_upper_bound
from skewconv.ops.torch_modes import without_autocast
from skewconv.rigor import factor_up, power_of_two_scaled


class AOL2d(FilterConv2d):
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

    The arguments are those of nn.Conv2d, with limits that :mod:`skewconv.nn.proven_conv` names.

    Reference: Prach & Lampert, "Almost-orthogonal layers for efficient general-purpose Lipschitz networks", 2022.
    """

    raw_weight: nn.Parameter

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        filters = (self.out_channels, self.folded_channels, self.kernel_size, self.kernel_size)
        return {"bias": (self.out_channels,), "raw_weight": filters}

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

    def _computed(self, sources: Sequence[Tensor], size: Size, dtype: torch.dtype, *, exact: bool) -> Tensor:
        weight = at_precision(sources[0], dtype)
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
