"""Products with J as one batch of small matrices: what the dense and the spectral engine share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from skewconv.ops.engines.channels import ChannelWidths, fit_channels
from skewconv.ops.engines.jacobian_products import StepPair, joined_steps


@dataclass(frozen=True)
class MatrixProducts:
    """States are rows (batch, rows, d), the operator is J itself (batch, d, d), real or complex."""

    widths: ChannelWidths
    joins_steps: bool = True
    dim: int = 2

    def adjoint(self) -> "MatrixProducts":
        """The same products on the channels of the adjoint map."""
        return replace(self, widths=self.widths.adjoint())

    def arrange(self, state: Tensor) -> Tensor:
        """Rows one after the other."""
        return state.contiguous()

    def product(self, state: Tensor, operator: Tensor, rows: int, back: Tensor | None, factor: float) -> Tensor:
        """State @ J^T + factor * back in one call."""
        transposed = operator[:, :rows, : state.shape[2]].mT
        if back is None or factor == 0.0:
            return torch.bmm(state, transposed)
        return torch.baddbmm(fit_channels(back, 2, 1, rows), state, transposed, beta=factor)

    def operator_grad(self, pairs: Sequence[StepPair], operator: Tensor, total: Tensor | None) -> Tensor:
        """lambda^T conj(u), one product for all the steps that read and write the same channels."""
        for grad, state, sign in joined_steps(pairs, 2, 1):
            total = accumulate(total, torch.bmm(grad.mT, state.conj().resolve_conj()), operator, sign)
        assert total is not None
        return total


def accumulate(total: Tensor | None, block: Tensor, operator: Tensor, sign: float) -> Tensor:
    """Total (zero at first) plus sign * block in the operator's leading rows and columns; the block may be used up."""
    if total is None and block.shape == operator.shape:
        return block if sign > 0 else block.neg_()
    if total is None:
        total = torch.zeros_like(operator)
    total[:, : block.shape[1], : block.shape[2]].add_(block, alpha=sign)
    return total
