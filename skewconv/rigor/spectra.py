"""All eigenvalues of Hermitian matrices, with a proven bound of how far each is off."""

import torch
from torch import Tensor

from skewconv.rigor.directed import MILLIONS_UP
from skewconv.rigor.summation import gamma


def hermitian_eigenvalues(matrices: Tensor) -> tuple[Tensor, float]:
    """Approximate eigenvalues in rising order, and d with |eigenvalue - approximation| <= d for each.

    With approximate eigenvectors V and eigenvalues D, let e = ||V^H V - I|| and r = ||H V - V D||. The unitary factor U
    of V has ||U - V|| <= e, so ||H U - U D|| <= r + e (||H|| + ||D||), and by Weyl's theorem the eigenvalues of H,
    which are those of U^H H U, are as close to D in their order. Norms are Frobenius norms; e and r include the
    rounding of their products.

    >>> values, distance = hermitian_eigenvalues(torch.tensor([[[2.0, 1.0], [1.0, 2.0]]], dtype=torch.float64))
    >>> bool(((values - torch.tensor([[1.0, 3.0]])).abs() <= distance).all()), distance < 1e-12
    (True, True)

    Args:
        matrices: (b, n, n), Hermitian, float64 or complex128.

    Returns:
        (b, n) float64, and one distance for all.
    """
    values, vectors = torch.linalg.eigh(matrices)
    n = matrices.shape[-1]
    g = gamma(n + 4, is_complex=True)
    identity = torch.eye(n, dtype=matrices.dtype, device=matrices.device)
    size, length, largest = _norm(matrices), _norm(vectors), float(values.abs().max())
    defect = _norm(vectors.mH @ vectors - identity) + g * (length**2 + 1)
    residual = _norm(matrices @ vectors - vectors * values[:, None, :]) + g * length * (size + largest)
    return values, (residual + defect * (size + largest)) * MILLIONS_UP


def _norm(matrices: Tensor) -> float:
    """The largest Frobenius norm of a batch."""
    return float(torch.linalg.matrix_norm(matrices).max()) * MILLIONS_UP
