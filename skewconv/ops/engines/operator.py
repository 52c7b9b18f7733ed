"""Exponentials of skew matrices, with the distance from orthogonality measured."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Operator:
    """The blocks of exp(J) that act on the channels that matter, and how far all of it is from orthogonal.

    Arguments:
        matrix: (blocks, outputs, inputs), float64 or complex128.
        orthogonality_error: an upper bound on max ||Q^H Q - 1|| over the blocks Q before they were cut, so that every
            gain lies between sqrt(1 - error) and sqrt(1 + error).
    """

    matrix: Tensor
    orthogonality_error: float


def exponential(skew: Tensor, outputs: int, inputs: int) -> Operator:
    """exp of skew-Hermitian matrices (blocks, d, d), cut to (blocks, outputs, inputs)."""
    full = torch.linalg.matrix_exp(skew)
    d, eps = full.shape[-1], torch.finfo(full.dtype).eps
    defect = full.mH @ full - torch.eye(d, dtype=full.dtype, device=full.device)
    # The Frobenius norm is above the spectral one; a computed product of two d x d matrices is off by at most
    # (d + 2) eps ||A||_F ||B||_F, four times that for complex numbers.
    measured = torch.linalg.matrix_norm(defect) * (1 + d * eps)
    rounding = 4 * (d + 2) * eps * torch.linalg.matrix_norm(full) ** 2
    return Operator(full[:, :outputs, :inputs].contiguous(), float((measured + rounding).max()))
