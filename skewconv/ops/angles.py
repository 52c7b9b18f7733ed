"""Theorems 4 and 5: every skew generator has an equivalent one with norm at most pi.

Frequency by frequency they give the complete set for circular padding: filters of maps around a torus, and logarithms.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skewconv.checks import IntOrTuple, check_finite, check_floating, check_square, per_axis
from skewconv.errors import ArgumentError, NotSkewError, ShapeError
from skewconv.ops.convolution import convolve, odd_filter, skew_filter
from skewconv.ops.fourier import grid
from skewconv.ops.norms import symbols

# Angles are clipped a few units in the last place below pi, so that multiplying the factors back together cannot
# round the norm of the result above it.
_LARGEST_ANGLE = math.pi * (1 - 2**-48)
# Layers in float32 are orthogonal to about 1e-6.
_LARGEST_DEFECT = 1e-5


def wrap_angles(matrix: Tensor) -> Tensor:
    """B with exp(B) = exp(A) and ||B|| <= pi, real when A is (Theorem 4), skew-Hermitian when A is (Theorem 5).

    Each angle is shifted by 2 pi round(angle / 2 pi): an odd function, so the two angles of a real rotation plane
    stay opposite, and a plane turned by exactly pi stays a real plane.

    >>> import math, torch
    >>> A = torch.tensor([[0.0, 1.5 * math.pi], [-1.5 * math.pi, 0.0]])
    >>> wrap_angles(A) / math.pi
    tensor([[ 0.0000, -0.5000],
            [ 0.5000,  0.0000]])

    A is (..., n, n), skew-symmetric or skew-Hermitian. Computed in double precision on the CPU.
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
    if matrix.is_complex():
        wrapped = np.stack([_with_phases(*np.linalg.eigh(-1j * a)) for a in skew])
    else:
        wrapped = np.stack([_wrap_real(a) for a in skew])
    return torch.from_numpy(wrapped).reshape(matrix.shape).to(matrix)


def _wrap(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    turns = np.round(angles / (2 * math.pi))
    return np.clip(angles - 2 * math.pi * turns, -_LARGEST_ANGLE, _LARGEST_ANGLE)


def _wrap_real(skew: NDArray[np.float64]) -> NDArray[np.float64]:
    # The real Schur form gives orthonormal bases of invariant planes, one angle each. Going through complex
    # eigenvalues instead would round the two halves of a pair near an odd multiple of pi in the same direction.
    planes, basis = _schur(skew, "real")
    above, below = np.diagonal(planes, 1), np.diagonal(planes, -1)
    return _with_planes(basis, np.diag(_wrap(np.where(below != 0, (above - below) / 2, 0.0)), 1))


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


def _with_phases(angles: NDArray[np.float64], vectors: NDArray[np.complex128]) -> NDArray[np.complex128]:
    wrapped: NDArray[np.complex128] = (vectors * (1j * _wrap(angles))) @ vectors.conj().T
    return np.asarray((wrapped - wrapped.conj().T) / 2)


def _with_planes(basis: NDArray[np.float64], rotation: NDArray[np.float64]) -> NDArray[np.float64]:
    wrapped: NDArray[np.float64] = basis @ (rotation - rotation.T) @ basis.T
    return np.asarray((wrapped - wrapped.T) / 2)


def skew_logarithm(weight: Tensor, size: IntOrTuple) -> Tensor:
    """L, skew, with exp(J_L) = J and ||J_L|| <= pi, for the Jacobian J of an orthogonal circular convolution.

    >>> import torch
    >>> from skewconv import nn, ops
    >>> layer, x = nn.Cayley2d(2, 2, 3).eval(), torch.randn(1, 2, 5, 5)
    >>> skew = ops.skew_logarithm(ops.circular_filter(layer, (2, 5, 5), dtype=x.dtype), size=5)
    >>> bound = ops.norm_upper_bound_at(skew, 5, "circular")
    >>> y = ops.conv_exp(x, skew, norm_bound=bound, tol=1e-6, padding_mode="circular")
    >>> torch.testing.assert_close(y, layer(x), atol=1e-5, rtol=0)

    L is the logarithm at every frequency of the image, so its kernel is as large as the image. A real weight has a
    real L if and only if its symbol has determinant 1 at every real frequency (0, or n / 2 of an even axis); a complex
    weight always has a complex L. Computed in double precision on the CPU.

    Args:
        weight: (m, m, *kernel), real or complex, orthogonal with circular padding on images of this size.
        size: the image's spatial sizes.

    Returns:
        (m, m, *odd kernel), skew to the last bit; the taps as in :func:`circular_filter`.
    """
    check_square(weight)
    sizes = per_axis(size, weight.dim() - 2, "size")
    wide = odd_filter(weight.detach().to("cpu", torch.complex128))
    matrices = torch.cat(list(symbols(wide[None], sizes)))
    defect = float(torch.linalg.matrix_norm(matrices.mH @ matrices - torch.eye(len(wide)), 2).max())
    if defect > _LARGEST_DEFECT:
        raise ArgumentError(
            f"weight is not orthogonal with circular padding on images of size {sizes}: ||J^H J - I|| is {defect:.2g}, "
            f"allowed {_LARGEST_DEFECT:.0g}; take the filter of an orthogonal layer, such as BCOP2d, in eval mode"
        )
    logarithms = _logarithms(matrices, sizes, is_real=not weight.is_complex()).unflatten(0, sizes)
    taps = torch.fft.ifftn(logarithms, dim=tuple(range(len(sizes)))).movedim((-2, -1), (0, 1))
    return skew_filter(_centred(taps if weight.is_complex() else taps.real) / 2).to(weight)


def circular_filter(
    linear_map: Callable[[Tensor], Tensor],
    input_shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    """The filter of a circular convolution, from its impulse responses; a bias is left out.

    >>> circular_filter(lambda x: x.roll(-1, dims=-1), (1, 3))
    tensor([[[0., 0., 1.]]], dtype=torch.float64)

    The map takes a batch (n, c_in, *size) to (n, c_out, *size): a layer, or x -> conv_exp(x, ...). Any other map than a
    circular convolution is refused, after a comparison at one random image.

    Returns:
        (c_out, c_in, *odd kernel). An axis of even n has n + 1 taps: tap n / 2 is at both ends, in halves.
    """
    channels, *size = input_shape
    if len(size) not in (1, 2, 3) or min(input_shape) < 1:
        raise ShapeError(f"input_shape must be (c_in, *size) with 1 to 3 spatial axes, none empty, got {input_shape}")
    # The impulses at pixel 0, the random image, and zeros, whose response is the bias.
    x = torch.zeros(channels + 2, channels, *size, dtype=dtype, device=device)
    x.flatten(2)[range(channels), range(channels), 0] = 1
    x[-2] = torch.randn(input_shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    y = linear_map(x)
    if y.shape[:1] + y.shape[2:] != x.shape[:1] + x.shape[2:]:
        raise ShapeError(f"linear_map takes {tuple(x.shape)} to {tuple(y.shape)}; it must keep the image: stride 1")
    y = y - y[-1:]
    # Tap t is the response at pixel -t.
    weight = _centred(_mirrored(y[:-2].transpose(0, 1), first=2))
    difference = float((convolve(x[-2:-1], weight, padding_mode="circular") - y[-2]).detach().norm())
    if not difference <= torch.finfo(dtype).eps ** 0.5 * float(y[-2].detach().norm()):
        raise ArgumentError(
            f"linear_map is no circular convolution: at a random image it is {difference:.2g} away from the filter of "
            "its impulse responses; it must be linear, with padding_mode='circular' and stride 1"
        )
    return weight


def _logarithms(matrices: Tensor, size: tuple[int, ...], *, is_real: bool) -> Tensor:
    """The logarithm at each frequency, (frequencies, m, m): conjugate where the symbols are, real where they are."""
    logarithms, reflected = torch.empty_like(matrices), []
    for place, mirror in enumerate(_mirrored(torch.arange(len(matrices)).view(size), first=0).flatten().tolist()):
        if is_real and place > mirror:
            logarithms[place] = logarithms[mirror].conj()
        elif not is_real or place < mirror:
            # The Schur form of a normal matrix is diagonal, in an orthonormal basis even where eigenvalues are equal.
            diagonal, basis = _schur(matrices[place].numpy(), "complex")
            logarithms[place] = torch.from_numpy(_with_phases(np.angle(np.diagonal(diagonal)), basis))
        elif (logarithm := rotation_logarithm(matrices[place].real.numpy())) is not None:
            logarithms[place] = torch.from_numpy(logarithm)
        else:
            reflected.append(place)
    if reflected:
        frequencies = [tuple(f) for f in grid([torch.arange(n) for n in size])[reflected].tolist()]
        raise ArgumentError(
            f"the symbol of weight has determinant -1 at the frequencies {frequencies} of images of size {size}, so no "
            "real skew filter has this exponential; take a complex one, skew_logarithm(weight.to(torch.complex128), "
            "size), or negate an output channel, which changes the sign at every frequency"
        )
    return logarithms


def _mirrored(tensor: Tensor, first: int) -> Tensor:
    """Index -i mod n for index i, along the first axis named and all that follow."""
    axes = tuple(range(first, tensor.dim()))
    return tensor.flip(axes).roll((1,) * len(axes), axes)


def _centred(taps: Tensor) -> Tensor:
    """(o, c, *size) with tap t at t mod n -> the filter of odd sizes with tap 0 in the middle."""
    for axis, n in enumerate(taps.shape[2:], 2):
        taps = taps.roll(n // 2, axis)
        if n % 2 == 0:
            half = taps.narrow(axis, 0, 1) / 2
            taps = torch.cat([half, taps.narrow(axis, 1, n - 1), half], axis)
    return taps
