"""Orthogonal matrices as the parameters of our layers: polar factors, and rotations from some of their rows."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skewconv.errors import ArgumentError

# Two angles that a real Schur form gives for a rotation by pi differ from it by less than this.
_HALF_TURN = 1e-6


def polar_factor(matrix: Tensor) -> Tensor:
    """The nearest orthonormal matrix, in float64: what Björck's iteration converges to. (*batch, rows, columns)."""
    u, _, v = torch.linalg.svd(matrix.detach().to(torch.float64), full_matrices=False)
    return u @ v


def generator_of_rows(rows: Tensor) -> Tensor:
    """A skew A, (m, m), such that the first rows of exp(A) are the given ones.

    The rotation turns span(e_1, .., e_k) into the span of the rows and moves nothing that is orthogonal to both, so
    that a logarithm of size 2 k is enough:

        B an orthonormal basis of span(e_1, .., e_k, rows), R a rotation of that space with R^T e_i = row_i,
        exp(A) = B R B^T on the space and the identity beside it, A = B log(R) B^T.

    Args:
        rows: (k, m), orthonormal, k <= m.

    Raises:
        ArgumentError: k = m and the rows are a reflection, which no exponential is.
    """
    w = rows.detach().to("cpu", torch.float64).numpy()
    k, m = w.shape
    units = np.eye(k, m)
    space = _basis(np.concatenate([units, w]).T)
    if space.shape[1] == k and m > k:
        # The rows span the same space as the unit vectors: one more dimension leaves room for a reflection.
        outside = np.zeros((m, 1))
        outside[k] = 1
        space = np.concatenate([space, outside], axis=1)
    first, turned = units @ space, w @ space
    first, turned = _completed(first), _completed(turned)
    # R^T maps e_i to row_i: R^T = turned^T first in the coordinates of the space.
    if np.linalg.det(turned) * np.linalg.det(first) < 0:
        if len(first) == k:
            raise ArgumentError(f"{k} orthonormal rows of length {m} with determinant -1 are no exponential")
        turned[-1] *= -1
    logarithm = _rotation_logarithm(first.T @ turned)
    return torch.from_numpy(space @ logarithm @ space.T)


def _basis(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    u, values, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(u[:, values > 1e-9])


def _completed(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """An orthogonal matrix that begins with these orthonormal rows."""
    count = len(rows)
    _, _, full = np.linalg.svd(rows)
    return np.concatenate([rows, full[count:]])


def _rotation_logarithm(rotation: NDArray[np.float64]) -> NDArray[np.float64]:
    """The skew logarithm of a real rotation, whose eigenvalues -1 come in pairs."""
    # scipy takes longer to import than all of this library, and few programs come here.
    import scipy.linalg

    planes, basis = scipy.linalg.schur(rotation, output="real")
    size = len(planes)
    angles, turned = np.zeros((size, size)), []
    at = 0
    while at < size:
        if at + 1 < size and abs(planes[at + 1, at]) > _HALF_TURN:
            angle = np.arctan2(planes[at + 1, at] - planes[at, at + 1], planes[at, at] + planes[at + 1, at + 1])
            angles[at + 1, at], angles[at, at + 1] = angle, -angle
            at += 2
        else:
            if planes[at, at] < 0:
                turned.append(at)
            at += 1
    for one, other in zip(turned[::2], turned[1::2], strict=True):
        angles[other, one], angles[one, other] = np.pi, -np.pi
    logarithm = basis @ angles @ basis.T
    return np.asarray((logarithm - logarithm.T) / 2)
