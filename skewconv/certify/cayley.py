"""The Cayley layer in float64, its Fourier transforms as matrix products: the rounding of a sum is known exactly.

With unitary transforms, whose entries have modulus n^(-1/2) and err by less than 32 u of it (an angle of at most 2 pi,
its cosine and sine), an axis of length n errs by (gamma_{n + 4} + 32 u) n^(1/2) of the norm of its input.
"""

import math

import torch
from torch import Tensor

from skewconv.certify.stage import Growth, Stage, stage
from skewconv.nn import Cayley2d, lipschitz_upper_bound
from skewconv.nn.downsample import invertible_downsample
from skewconv.rigor import ERROR_UP, UNIT_ROUNDOFF, gamma


def cayley_stage(module: Cayley2d, shape: tuple[int, ...]) -> Stage:
    """y = F^H Q F x + bias, with Q given at half of the frequencies: the others are their conjugates."""
    q = module.frequency_matrices(shape)
    (h, half), w = q.shape[:2], shape[2] // module.stride
    down, across = _waves(h, h, q), _waves(half, w, q)
    # What a frequency of the half stands for: itself, or itself and its conjugate.
    share = torch.full((half, 1), 2.0, dtype=torch.float64, device=q.device)
    share[0] = 1.0
    if w % 2 == 0:
        share[-1] = 1.0
    back = across.conj() * share
    bias = None if module.bias is None else module.bias.detach().view(-1, 1, 1)

    def run(x: Tensor) -> Tensor:
        x = invertible_downsample(x, (module.stride, module.stride)).to(q.dtype)
        spectrum = (down @ x) @ across.T
        moved = (q.flatten(0, 1) @ spectrum.flatten(2).permute(2, 1, 0)).permute(2, 1, 0)
        y = (down.mH @ moved.unflatten(2, (h, half)) @ back).real
        return y if bias is None else y + bias

    rows, columns = _axis_error(h), _axis_error(w)
    size = q.abs().flatten(0, 1)
    largest = float((size.sum(2).amax(1) * size.sum(1).amax(1)).sqrt().max())
    product = gamma(q.shape[3] + 4, is_complex=True) * largest
    bound = lipschitz_upper_bound(module, shape)
    # Half the frequencies carry at least half of the energy: the way back stretches an error by sqrt(2) at most.
    slope = math.sqrt(2) * (bound * (2 * rows + columns) + product) + 2 * bound * columns
    error = Growth(slope * 1.001, 0.0)
    plain = stage(run, shape, bound, error, q.device)
    return stage(run, shape, bound, error.plus(plain.norm.plus(error).times(UNIT_ROUNDOFF)), q.device)


def _waves(frequencies: int, n: int, like: Tensor) -> Tensor:
    """e^(-2 pi i f p / n) / sqrt(n): (frequencies, n), whole turns taken off exactly."""
    turns = torch.outer(torch.arange(frequencies), torch.arange(n)) % n
    angle = turns.to(torch.float64) * (2 * math.pi / n)
    return (torch.complex(angle.cos(), -angle.sin()) / math.sqrt(n)).to(like)


def _axis_error(n: int) -> float:
    return (gamma(n + 4, is_complex=True) + 32 * UNIT_ROUNDOFF) * math.sqrt(n) * ERROR_UP
