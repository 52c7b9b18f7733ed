"""What an engine must be able to do with J: multiply by it, and give the gradient of its products in the filter."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from skewconv.ops.engines.channels import ChannelWidths

# lambda and u of one step, and the sign of their product.
StepPair = tuple[Tensor, Tensor, float]


class JacobianProducts(Protocol):
    """How an engine multiplies its states by J, given its own arrangement of the filter."""

    @property
    def widths(self) -> ChannelWidths:
        """The channels that matter; ``widths.groups`` counts the blocks along ``dim``."""

    @property
    def dim(self) -> int:
        """The axis of a state along which channels lie."""

    @property
    def joins_steps(self) -> bool:
        """Whether the gradients of all steps are better taken together."""

    def adjoint(self) -> "JacobianProducts":
        """The same products on the channels of the adjoint map."""

    def arrange(self, state: Tensor) -> Tensor:
        """The same values in the memory order the products want."""

    def product(self, state: Tensor, operator: Tensor, rows: int, back: Tensor | None, factor: float) -> Tensor:
        """J state + factor * back, the first ``rows`` channels of each group, as a new tensor."""

    def operator_grad(self, pairs: Sequence[StepPair], operator: Tensor, total: Tensor | None) -> Tensor:
        """Total (zero at first) plus the gradients of sign * <lambda, J u> in the operator."""


def joined_steps(pairs: Sequence[StepPair], dim: int, along: int) -> list[StepPair]:
    """The pairs with equal channels (along ``dim``) joined ``along`` another axis, the widest first.

    All steps but the first and the last read and write every channel, so that their gradients are one product. With 3
    channels, 2 of them read and 1 kept, and four steps, (rows, columns) are::

        step       0        1        2        3
        widths     (3, 2)   (3, 3)   (3, 3)   (1, 3)
        products   [3 x 2]  [3 x 3 over twice the batch]  [1 x 3]
    """
    if len(pairs) == 1:
        return list(pairs)
    alike: dict[tuple[int, int], list[StepPair]] = {}
    for pair in pairs:
        alike.setdefault((pair[0].shape[dim], pair[1].shape[dim]), []).append(pair)
    return [_as_one_pair(alike[widths], along) for widths in sorted(alike, reverse=True)]


def _as_one_pair(pairs: list[StepPair], along: int) -> StepPair:
    """Pairs of equal widths as one, their signs taken into lambda."""
    if len(pairs) == 1:
        return pairs[0]
    signed = [grad if sign > 0 else -grad for grad, _, sign in pairs]
    return torch.cat(signed, along), torch.cat([state for _, state, _ in pairs], along), 1.0
