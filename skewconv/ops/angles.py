"""Theorems 4 and 5: every skew generator has an equivalent one with norm at most pi."""

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skewconv.checks import check_finite, check_floating
from skewconv.errors import NotSkewError, ShapeError

# Angles are clipped a few units in the last place below pi, so that multiplying the factors back together cannot
# round the norm of the result above it.
_LARGEST_ANGLE = math.pi * (1 - 2**-48)


def wrap_angles(matrix: Tensor) -> Tensor:
    """B with exp(B) = exp(A) and ||B|| <= pi, real when A is (Theorem 4), skew-Hermitian when A is (Theorem 5).

    Each angle is shifted by 2 pi round(angle / 2 pi): an odd function, so the two angles of a real rotation plane
    stay opposite, and a plane turned by exactly pi stays a real plane.

    >>> import math, torch
    >>> A = torch.tensor([[0.0, 1.5 * math.pi], [-1.5 * math.pi, 0.0]])
    >>> wrap_angles(A) / math.pi
    tensor([[ 0.0000, -0.5000],
            [ 0.5000,  0.0000]])

    Args:
        matrix: A, (..., n, n), skew-symmetric or skew-Hermitian. Computed in double precision on the CPU.

    Returns:
        (..., n, n), the dtype and device of A.
    """
    check_floating(matrix, "matrix")
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.numel() == 0:
        raise ShapeError(f"matrix must be non-empty of shape (..., n, n), got {tuple(matrix.shape)}")
    check_finite(matrix, "matrix")
    wide = matrix.detach().to("cpu", torch.complex128 if matrix.is_complex() else torch.float64)
    defect = float((wide + wide.mH).abs().max())
    if defect > 1e-5 * float(wide.abs().max()):
        raise NotSkewError(f"matrix is not skew: max |A + A^H| is {defect:.2g}; pass A - A.mH for a skew matrix")
    skew = ((wide - wide.mH) / 2).numpy().reshape(-1, *matrix.shape[-2:])
    wrap = _wrap_hermitian if matrix.is_complex() else _wrap_real
    wrapped = np.stack([wrap(a) for a in skew])
    return torch.from_numpy(wrapped).reshape(matrix.shape).to(matrix)


def _wrap(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    turns = np.round(angles / (2 * math.pi))
    return np.clip(angles - 2 * math.pi * turns, -_LARGEST_ANGLE, _LARGEST_ANGLE)


def _wrap_hermitian(skew: NDArray[np.complex128]) -> NDArray[np.complex128]:
    angles, vectors = np.linalg.eigh(-1j * skew)
    return _with_phases(vectors, angles)


def _wrap_real(skew: NDArray[np.float64]) -> NDArray[np.float64]:
    # The real Schur form gives orthonormal bases of invariant planes, one angle each. Going through complex
    # eigenvalues instead would round the two halves of a pair near an odd multiple of pi in the same direction.
    planes, basis = _schur(skew, "real")
    above, below = np.diagonal(planes, 1), np.diagonal(planes, -1)
    return _with_planes(basis, np.diag(_wrap(np.where(below != 0, (above - below) / 2, 0.0)), 1))


def unitary_logarithm(unitary: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """B, skew-Hermitian, with exp(B) = U and ||B|| <= pi, for a unitary U: (n, n)."""
    # The Schur form of a normal matrix is diagonal, in an orthonormal basis even where eigenvalues are equal.
    diagonal, basis = _schur(unitary, "complex")
    return _with_phases(basis, np.angle(np.diagonal(diagonal)))


def rotation_logarithm(orthogonal: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """B, real and skew, with exp(B) = Q and ||B|| <= pi, for a real orthogonal Q: (n, n). None if det Q = -1."""
    planes, basis = _schur(orthogonal, "real")
    cosines, above, below = (np.diagonal(planes, offset) for offset in (0, 1, -1))
    turned = below != 0
    rotation = np.diag(_wrap(np.where(turned, np.arctan2((above - below) / 2, cosines[:-1]), 0.0)), 1)
    # Eigenvalues -1 outside of these planes: any two of them are a plane that is turned by pi.
    negated = np.flatnonzero((cosines < 0) & ~np.append(turned, False) & ~np.append(False, turned))
    if len(negated) % 2:
        return None
    rotation[negated[::2], negated[1::2]] = _LARGEST_ANGLE
    return _with_planes(basis, rotation)


def _schur(matrix: NDArray[Any], output: Literal["real", "complex"]) -> tuple[NDArray[Any], NDArray[Any]]:
    # scipy takes longer to import than all of this library, and few programs come here.
    import scipy.linalg

    form, basis = scipy.linalg.schur(matrix, output=output)
    return form, basis


def _with_phases(vectors: NDArray[np.complex128], angles: NDArray[np.float64]) -> NDArray[np.complex128]:
    wrapped: NDArray[np.complex128] = (vectors * (1j * _wrap(angles))) @ vectors.conj().T
    return np.asarray((wrapped - wrapped.conj().T) / 2)


def _with_planes(basis: NDArray[np.float64], rotation: NDArray[np.float64]) -> NDArray[np.float64]:
    wrapped: NDArray[np.float64] = basis @ (rotation - rotation.T) @ basis.T
    return np.asarray((wrapped - wrapped.T) / 2)
