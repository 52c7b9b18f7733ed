"""Dense matrices of linear maps: the oracle of the tests."""

from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor

from skewconv.checks import IntOrTuple, check_filter, check_padding_mode, per_axis
from skewconv.choices import PaddingMode
from skewconv.errors import ShapeError
from skewconv.ops.filters import odd_filter


def dense_jacobian(
    weight: Tensor, size: IntOrTuple, padding_mode: PaddingMode = "zeros", dilation: IntOrTuple = 1, groups: int = 1
) -> Tensor:
    """J = sum_t L_t (x) P^(t_1) (x) P^(t_2) ...: the matrix of a convolution, written out (Section 4 of the paper).

    >>> import torch
    >>> dense_jacobian(torch.tensor([[[-1.0, 0.0, 1.0]]]), size=3)
    tensor([[ 0.,  1.,  0.],
            [-1.,  0.,  1.],
            [ 0., -1.,  0.]])

    Args:
        weight: (c_out, c_in / groups, *kernel); even sizes act as with ``padding="same"``.
        size: the image's spatial sizes.
        padding_mode: "zeros" or "circular" (a kernel wider than the image wraps as often as it must).

    Returns:
        (c_out * pixels, c_in * pixels), rows and columns in the order of ``x.flatten()`` for x (c, *size).
    """
    check_filter(weight, groups=groups)
    check_padding_mode(padding_mode)
    weight = odd_filter(weight)
    kernel = tuple(weight.shape[2:])
    sizes, steps = per_axis(size, len(kernel), "size"), per_axis(dilation, len(kernel), "dilation")
    rows, columns = weight.shape[0] // groups, weight.shape[1]
    blocks = weight.reshape(groups, rows, columns, -1)
    pixels = torch.Size(sizes).numel()
    jacobian = weight.new_zeros(groups * rows, pixels, groups * columns, pixels)
    for index, tap in enumerate(product(*(range(k) for k in kernel))):
        shift = torch.ones(1, 1, dtype=weight.dtype, device=weight.device)
        for t, k, n, d in zip(tap, kernel, sizes, steps, strict=True):
            shift = torch.kron(shift, _shift_matrix(n, d * (t - k // 2), padding_mode).to(shift))
        channels: Tensor = torch.block_diag(*blocks[..., index])
        jacobian += torch.einsum("ij,pq->ipjq", channels, shift)
    return jacobian.reshape(groups * rows * pixels, groups * columns * pixels)


def _shift_matrix(size: int, offset: int, padding_mode: PaddingMode) -> Tensor:
    """P with (P x)[i] = x[i + offset]: past the border zero, or around it."""
    if padding_mode == "zeros":
        return torch.diag(torch.ones(size - abs(offset)), offset) if abs(offset) < size else torch.zeros(size, size)
    return torch.eye(size).roll(offset, 1)


def dense_matrix(
    linear_map: Callable[[Tensor], Tensor],
    input_shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    """The matrix of a linear map of batches, (n, *input_shape) -> (n, *output_shape), from its action on the identity.

    >>> dense_matrix(lambda x: 2 * x, (2,))
    tensor([[2., 0.],
            [0., 2.]], dtype=torch.float64)
    """
    length = torch.Size(input_shape).numel()
    if length == 0:
        raise ShapeError(f"input_shape {tuple(input_shape)} is empty; every size must be at least 1")
    basis = torch.eye(length, dtype=dtype, device=device).reshape(length, *input_shape)
    return linear_map(basis).reshape(length, -1).T
