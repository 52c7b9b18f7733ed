"""The interval that the spectrum of a filter needs in training, followed while the filter changes.

Filters are scaled by a loose bound of their norm (2.1 for 3 x 3), and most have a norm of 1.2 to 1.7. A polynomial for
the interval that is really needed has fewer products at the same error. The norm is estimated by the paper's real
normalisation: power steps with J itself, on a vector that is kept, as an image on a small torus. A norm there is that
of some of the frequencies that an image of any size has, so it depends little on the size.

This is an estimate with a margin, for training alone: what is proven of a layer does not know of it.
"""

import math
from typing import Any, get_args

import torch
from torch import Tensor, nn

from skewconv.choices import NormName
from skewconv.errors import ArgumentError
from skewconv.ops.convolution import convolve

# Sides of the torus: of its frequencies the nearest is within pi / 8 of any other.
_SIDE = 8
# Products from a fixed start, after which an estimate is 2 % low at most where it was tried.
_FIRST_PRODUCTS = 64
# Passes between power steps, to follow the filter, and between intervals, for which the host has to wait: at the start,
# where filters turn fast, also after 1, 2, 4, 8, 16 and 32.
_PASSES_A_STEP = 5
_PASSES_AN_INTERVAL = 50
# For what the estimate is low by, and what the filter changes before the next.
_MARGIN = 1.05
# Intervals are rounded up to multiples of this, so that there are few of them.
_GRAIN = 1 / 32


class TrackedNorm(nn.Module):
    """The interval of a filter, and what it takes to follow it; all of it is in the buffers of a checkpoint.

    Attributes:
        interval: at least the norm, it is hoped; infinite before the first pass.
        passes: how many filters it has seen.

    Args:
        channels, kernel, groups: of the filter.
        dtype: of the vector.
    """

    vector: Tensor
    state: Tensor

    def __init__(
        self,
        channels: int,
        kernel: tuple[int, ...],
        groups: int,
        device: torch.device | str | None,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.groups, self.interval, self.passes = groups, math.inf, 0
        size = tuple(1 if k == 1 else max(_SIDE, k) for k in kernel)
        self.register_buffer("vector", torch.zeros(1, channels, *size, device=device, dtype=dtype))
        self.register_buffer("state", torch.zeros(2, device=device, dtype=torch.float64))
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Start anew, from a fixed vector."""
        self.interval, self.passes = math.inf, 0
        if not self.vector.is_meta:
            generator = torch.Generator().manual_seed(0)
            self.vector.copy_(torch.randn(self.vector.shape, dtype=self.vector.dtype, generator=generator))
            self._store()

    @torch.no_grad()
    def follow(self, weight: Tensor) -> None:
        """Take notice of a filter (m, m / groups, *kernel): mostly nothing is done."""
        due = self.passes % _PASSES_AN_INTERVAL == 0 or (self.passes < _PASSES_AN_INTERVAL and _is_power(self.passes))
        if due or self.passes % _PASSES_A_STEP == 0:
            self._step(weight, 2 if self.passes else _FIRST_PRODUCTS)
        if due:
            norm = float(torch.linalg.vector_norm(self.vector))
            self.interval = math.ceil(norm * _MARGIN / _GRAIN) * _GRAIN if math.isfinite(norm) else math.inf
        self.passes += 1
        self._store()

    def _step(self, weight: Tensor, products: int) -> None:
        """v <- J v / ||v||: since J is skew, ||J v|| / ||v|| tends to its norm without the adjoint."""
        weight = weight.to(self.vector.dtype)
        for _ in range(products):
            unit = self.vector / torch.linalg.vector_norm(self.vector).clamp_min(torch.finfo(weight.dtype).tiny)
            self.vector.copy_(convolve(unit, weight, padding_mode="circular", groups=self.groups))

    def _store(self) -> None:
        # Filled, and not copied: the host does not wait.
        for place, value in enumerate((self.interval, float(self.passes))):
            self.state[place].fill_(value)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        if f"{prefix}state" not in state_dict:
            return  # a checkpoint of a layer that did not follow its norm: this one starts anew
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        if not self.state.is_meta:
            interval, passes = self.state.tolist()
            self.interval, self.passes = float(interval), int(passes)


def _is_power(n: int) -> bool:
    """True for 1, 2, 4, 8, ..."""
    return n > 0 and n & (n - 1) == 0


def check_norm_name(norm: str) -> bool:
    """Whether the norm is to be tracked; refuses other words."""
    if norm not in get_args(NormName):
        raise ArgumentError(f"norm must be one of {', '.join(map(repr, get_args(NormName)))}, got {norm!r}")
    return norm == "tracked"
