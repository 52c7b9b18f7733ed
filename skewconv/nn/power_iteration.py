"""Norms estimated in training by power iteration on vectors that a layer keeps, a step for every change of the weights.

While the weights stay as they are, as under activation checkpointing, so must the estimate of their norm.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from skewconv.ops.convolution import convolve
from skewconv.ops.torch_modes import tracing

# Of each tensor its address, and how often it was written to.
WriteState: TypeAlias = tuple[tuple[int, int], ...]
# Edits through `.data` change no counter: after this many passes that look alike the next one is a step all the same.
_MOST_REPEATS = 100
# Steps of Lanczos' method from a fixed start: a random filter of 1024 channels is then known to a part in a thousand.
_FRESH_STEPS = 24
# Vectors that are iterated together, and squarings of their Gram matrix, for 64 power steps within their span.
_BLOCK = 16
_SQUARINGS = 6
# The authors' refresh: power steps made at once, and the number of passes between two refreshes.
_REFRESH_STEPS = 50
REFRESH_EVERY = 200
_CONVERGED_STEPS = 500


class LastStep:
    """The vectors that the last power step began with, and the state of weights and vectors after it."""

    def __init__(self) -> None:
        self._began_with: list[Tensor] = []
        self._after: WriteState | None = None
        self._repeats = 0

    def repeated(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The vectors to begin with again, if no weight or vector was written to since the last step; else None."""
        if self._after is None or self._repeats >= _MOST_REPEATS or _write_state(tensors) != self._after:
            return None
        self._repeats += 1
        return self._began_with

    def record(self, began_with: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        """Remember a step, after its vectors were stored."""
        self._after, self._repeats = _write_state(tensors), 0
        self._began_with = [] if self._after is None else list(began_with)

    def ends_with_backward(self, made: Tensor) -> None:
        """Forget the step once a gradient reaches what was made of it: fused optimizers write without counting."""
        if made.requires_grad and not tracing():
            made.register_hook(self._forget)

    def _forget(self, _: Tensor) -> None:
        self._after = None

    def __reduce__(self) -> tuple[type["LastStep"], tuple[()]]:
        # A copy or a pickle starts empty: addresses and counters mean nothing there.
        return type(self), ()


def _write_state(tensors: Sequence[Tensor]) -> WriteState | None:
    """Addresses and write counters; None where they are unknown."""
    if any(type(t) not in (Tensor, nn.Parameter) or t.is_inference() for t in tensors):
        return None
    return tuple((t.data_ptr(), t._version) for t in tensors)


class PowerStep(NamedTuple):
    """Leading singular vectors (groups, rows) and (groups, columns), their norms (groups,), and the next block."""

    u: Tensor
    v: Tensor
    norms: Tensor
    block: Tensor


def power_step(matrix: Tensor, block: Tensor) -> PowerStep:
    """One step of power iteration with a block of vectors, (groups, rows, k).

    Its norm is the largest ||A v|| over unit vectors v in the span of A^H U: at most that of A. A single vector would
    not do: training raises the singular values that no estimate sees, and it takes dozens of steps to find another.
    """
    right = torch.linalg.qr(matrix.mH @ block).Q
    image = matrix @ right
    leading = _leading_vector(image.mH @ image)
    top = (image @ leading)[..., 0]
    norms = torch.linalg.vector_norm(top, dim=-1)
    floor = _nonzero(norms)[:, None]
    return PowerStep(top / floor, (right @ leading)[..., 0], norms, image / floor[..., None])


def converged(matrix: Tensor, block: Tensor, steps: int = _CONVERGED_STEPS) -> PowerStep:
    step = power_step(matrix, block)
    for _ in range(steps - 1):
        step = power_step(matrix, step.block)
    return step


def _leading_vector(gram: Tensor) -> Tensor:
    """The leading eigenvector (groups, k, 1) of positive matrices (groups, k, k): a column of a high power."""
    for _ in range(_SQUARINGS):
        gram = gram / _nonzero(gram.diagonal(dim1=-2, dim2=-1).real.sum(-1))[:, None, None]
        gram = gram @ gram
    largest = gram.diagonal(dim1=-2, dim2=-1).real.argmax(-1)
    column = gram.gather(-1, largest[:, None, None].expand(-1, gram.shape[-1], 1))
    return column / _nonzero(torch.linalg.vector_norm(column, dim=1))[..., None]


def _nonzero(values: Tensor) -> Tensor:
    # A zero filter has no direction; the floor keeps the step finite without touching any other filter.
    return values.clamp_min(torch.finfo(values.dtype).tiny)


def block_size(rows: int, columns: int) -> int:
    return min(_BLOCK, rows, columns)


def refreshed(matrix: Tensor, block: Tensor) -> PowerStep:
    return converged(matrix, block.to(matrix.dtype), _REFRESH_STEPS)


def belongs_to(matrix: Tensor, block: Tensor) -> bool:
    """True if the block's estimate of the norm is within a tenth of that after a refresh."""
    here = power_step(matrix, block.to(matrix.dtype)).norms.amax()
    return bool(here >= 0.9 * refreshed(matrix, block).norms.amax())


def fresh_block(matrix: Tensor) -> Tensor:
    """The leading left vectors of A in the span of u, A A^H u, (A A^H)^2 u, ... of a fixed u: (groups, rows, k).

    The basis is made orthogonal twice, which is enough to rounding; one that is complete goes on with zeros.
    """
    rows = matrix.shape[1]
    u = torch.linspace(1, 2, rows, device=matrix.device).expand(matrix.shape[:2]).to(matrix.dtype)
    basis = torch.zeros(*u.shape, 0, dtype=u.dtype, device=u.device)
    for _ in range(min(_FRESH_STEPS, rows)):
        along = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
        for _ in range(2):
            u = u - (basis @ (basis.mH @ u[..., None]))[..., 0]
        length = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
        u = torch.where(length <= 1e-4 * along, 0.0, u / _nonzero(length))
        basis = torch.cat([basis, u[..., None]], -1)
        u = (matrix @ (matrix.mH @ u[..., None]))[..., 0]
    image = matrix.mH @ basis
    count = block_size(*matrix.shape[1:])
    return basis @ torch.linalg.eigh(image.mH @ image).eigenvectors[..., -count:]


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
    """The interval that the spectrum of a skew filter needs in training, followed while the filter changes.

    Filters are scaled by a loose bound of their norm (2.1 for 3 x 3), and most have a norm of 1.2 to 1.7. A polynomial
    for the interval that is really needed has fewer products at the same error. The norm is estimated by the paper's
    real normalisation: power steps with J itself, on an image on a small torus, whose frequencies are some of those of
    an image of any size. All of it is in the buffers.
    """

    vector: Tensor
    state: Tensor

    def __init__(
        self, channels: int, kernel: tuple[int, ...], groups: int, device: torch.device | str | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        # The estimated norm with a margin, infinite before the first pass; and the number of filters seen.
        self.groups, self.interval, self.passes = groups, math.inf, 0
        size = tuple(1 if k == 1 else max(_SIDE, k) for k in kernel)
        self.register_buffer("vector", torch.zeros(1, channels, *size, device=device, dtype=dtype))
        self.register_buffer("state", torch.zeros(2, device=device, dtype=torch.float64))
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        self.interval, self.passes = math.inf, 0
        if not self.vector.is_meta:
            generator = torch.Generator().manual_seed(0)
            self.vector.copy_(torch.randn(self.vector.shape, dtype=self.vector.dtype, generator=generator))
            self._store()

    @torch.no_grad()
    def follow(self, weight: Tensor) -> None:
        """Count a pass with this filter (m, m / groups, *kernel), and renew the estimate where it is due."""
        n = self.passes
        due = n % _PASSES_AN_INTERVAL == 0 or (n < _PASSES_AN_INTERVAL and n & (n - 1) == 0)
        if due or n % _PASSES_A_STEP == 0:
            self._step(weight, 2 if n else _FIRST_PRODUCTS)
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
