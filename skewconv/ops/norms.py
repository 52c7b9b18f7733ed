"""The l2 norm of a convolution's Jacobian: proven upper bounds for every image size, and estimates at one size."""

import math
import sys
from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from skewconv import rigor
from skewconv.checks import IntOrTuple, check_counts, check_filter, check_padding_mode, per_axis
from skewconv.choices import PaddingMode
from skewconv.errors import ArgumentError
from skewconv.ops.convolution import Geometry, convolve, odd_filter, skew_defect, transpose_filter
from skewconv.ops.fourier import frequency_numbers, grid, waves

NormMethod: TypeAlias = Literal["symbol", "fantastic-four", "gram"]

# Grid points per unit of degree: 1 / cos(pi / 32)^2 is 0.97 % above one.
_FINEST_GRID = 32
# Floating-point operations that the default grid may cost: some seconds on two cores.
_OPERATION_BUDGET = 3e11
# What a call costs for the smallest matrix, in the same unit.
_OPERATIONS_PER_CALL = 1e5
_CHUNK_BYTES = 2**25
# Where a search for a norm starts that may be far below what the entries suggest; it has to start above zero.
_LEAST_SHARE = 2.0**-40


def norm_upper_bound(
    weight: Tensor, method: NormMethod = "symbol", *, groups: int = 1, grid: IntOrTuple | None = None
) -> float:
    """A number >= ||J|| for every image size, zero and circular padding, and every dilation; rounding included.

    >>> import torch
    >>> derivative = torch.tensor([[[-1.0, 0.0, 1.0]]])  # symbol 2 i sin(w), so sup ||J|| = 2
    >>> [round(norm_upper_bound(derivative, method), 3) for method in ("symbol", "gram", "fantastic-four")]
    [2.01, 2.01, 2.449]

    Args:
        weight: (c_out, c_in / groups, *kernel), real or complex, one to three spatial axes.
        method: "symbol": max over a grid of N frequencies an axis of the symbol's norm, divided by prod cos(pi d / N)
            with d = (k - 1) / 2; "gram": the same maximum from products ||(A^H A)^(2^j)||_F only, at most 1 % above it;
            "fantastic-four": sqrt(prod k) times the least norm of the 2^D reshapes; the paper's bound, the loosest.
        groups: number of independent channel groups; the norm is the maximum over them.
        grid: frequencies per axis, at least the kernel size; by default 32 d (at most 0.5 % above the supremum for each
            axis), and fewer for many channels, so that the work stays near 3e11 operations.

    Reference: Singla & Feizi, Fantastic Four, ICLR 2021; M. Riesz's lemma on trigonometric polynomials (1914);
    Delattre et al., Efficient Bound of Lipschitz Constant for Convolutional Layers by Gram Iteration, ICML 2023.
    """
    check_filter(weight, groups=groups)
    if method not in get_args(NormMethod):
        raise ArgumentError(f"method must be one of {', '.join(map(repr, get_args(NormMethod)))}, got {method!r}")
    if method == "fantastic-four" and grid is not None:
        raise ArgumentError(f"grid={grid!r} has no meaning for method='fantastic-four'; leave it out")
    points = _grid_points(weight, method, groups, grid)
    scaled, exponent = rigor.power_of_two_scaled(rigor.in_double(weight))
    if not scaled.any():
        return 0.0
    skew = _is_exactly_skew(scaled, groups)
    if method == "fantastic-four":
        least = min(rigor.spectral_norm_upper_bound(m) for m in fantastic_four_reshapes(scaled, groups, skew=skew))
        return rigor.ldexp_up(math.sqrt(math.prod(weight.shape[2:])) * least * rigor.FEW_ROUNDINGS_UP, exponent)
    blocks = _by_group(scaled, groups)
    on_grid = _gram_bound(blocks, points) if method == "gram" else _eigenvalue_bound(blocks, points, skew)
    # A trigonometric polynomial with taps -d..d and maximum M at w has modulus >= M cos(d |v - w|) at v (M. Riesz), and
    # some grid point is within pi / N of w. Apply it to u^H S v, axis by axis. Half-integer d, for even kernels, is the
    # same lemma for w / 2.
    cosines = math.prod(math.cos(math.pi * (k - 1) / (2 * n)) for k, n in zip(weight.shape[2:], points, strict=True))
    # Near pi / 2 the cosine inherits the absolute error of its argument.
    cosines -= 32 * rigor.UNIT_ROUNDOFF
    return rigor.ldexp_up((on_grid + symbol_error(blocks)) / cosines * rigor.FEW_ROUNDINGS_UP, exponent)


def norm_upper_bound_at(
    weight: Tensor, size: IntOrTuple, padding_mode: PaddingMode = "zeros", *, dilation: IntOrTuple = 1, groups: int = 1
) -> float:
    """A number >= ||J|| for images of one size, rounding included: tighter than for every size, and often cheaper.

    >>> import torch
    >>> derivative = torch.tensor([[[-1.0, 0.0, 1.0]]])
    >>> [round(norm_upper_bound_at(derivative, n), 4) for n in (1, 2, 3)]  # ||J|| is 0, 1, sqrt(2)
    [0.0, 1.7321, 2.0]

    With circular padding J is unitarily equivalent to its symbols at the n frequencies of the image. With zeros around
    it, an image of n pixels is part of a torus of n + d pixels, where d is how far a tap reaches, and J is part of that
    torus's convolution. Images for which this is too much work have the bound of :func:`norm_upper_bound`.

    The weight is as in :func:`norm_upper_bound`, with odd sizes; size has the image's spatial sizes.
    """
    check_filter(weight, groups=groups)
    check_padding_mode(padding_mode)
    kernel, axes = tuple(weight.shape[2:]), weight.dim() - 2
    if any(k % 2 == 0 for k in kernel):
        raise ArgumentError(f"the kernel must have odd sizes, got {kernel}; pad it with zeros in front")
    sizes, steps = per_axis(size, axes, "size"), per_axis(dilation, axes, "dilation")
    met = Geometry(kernel, steps, groups, padding_mode).on_image(sizes)
    weight, kernel = met.within_reach(weight), met.kernel
    reach = [0 if padding_mode == "circular" else d * (k // 2) for k, d in zip(kernel, steps, strict=True)]
    # The symbol does not vary along an axis with a single tap. With dilation only some of these frequencies occur.
    torus = tuple(1 if k == 1 else n + r for k, n, r in zip(kernel, sizes, reach, strict=True))
    if math.prod(torus) * _operations_a_frequency(weight, "symbol", groups) > _OPERATION_BUDGET:
        return norm_upper_bound(weight, groups=groups)
    scaled, exponent = rigor.power_of_two_scaled(rigor.in_double(weight))
    if not scaled.any():
        return 0.0
    blocks = _by_group(scaled, groups)
    if math.prod(kernel) == 1:
        return rigor.ldexp_up(rigor.spectral_norm_upper_bound(blocks.flatten(2)), exponent)
    on_torus = _eigenvalue_bound(blocks, torus, _is_exactly_skew(scaled, groups), least=_LEAST_SHARE)
    return rigor.ldexp_up((on_torus + symbol_error(blocks)) * rigor.FEW_ROUNDINGS_UP, exponent)


def norm_estimate(
    weight: Tensor,
    size: IntOrTuple,
    padding_mode: PaddingMode = "zeros",
    iterations: int = 100,
    *,
    dilation: IntOrTuple = 1,
    groups: int = 1,
    seed: int = 0,
) -> float:
    """||J v|| / ||v|| <= ||J|| after a power iteration on J^H J: the paper's real normalisation, a lower bound.

    >>> import torch
    >>> derivative = torch.tensor([[[-1.0, 0.0, 1.0]]])
    >>> round(norm_estimate(derivative, size=3), 4)  # J has the eigenvalues 0 and +-i sqrt(2)
    1.4142

    The arguments are as in :func:`norm_upper_bound_at`; kernels may have even sizes. J and its adjoint are applied
    ``iterations`` times, to a vector drawn with the seed.
    """
    check_filter(weight, groups=groups)
    check_padding_mode(padding_mode)
    sizes = per_axis(size, weight.dim() - 2, "size")
    check_counts(iterations=iterations)
    scaled, exponent = rigor.power_of_two_scaled(odd_filter(rigor.in_double(weight)))
    adjoint = transpose_filter(scaled, groups)
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(1, scaled.shape[1] * groups, *sizes, dtype=scaled.dtype, generator=generator)
    best = 0.0
    for _ in range(iterations):
        length = torch.linalg.vector_norm(vector)
        if length == 0:
            break
        image = convolve(vector / length, scaled, padding_mode=padding_mode, dilation=dilation, groups=groups)
        best = max(best, float(torch.linalg.vector_norm(image)))
        vector = convolve(image, adjoint, padding_mode=padding_mode, dilation=dilation, groups=groups)
    return min(rigor.ldexp_up(best, exponent), sys.float_info.max)


def fantastic_four_reshapes(weight: Tensor, groups: int = 1, *, skew: bool = False) -> list[Tensor]:
    """M_A with rows (c_out, axes in A) and columns (c_in, other axes), for each subset A of the spatial axes.

    The symbol is E_A^H M_A E_B with ||E_A|| ||E_B|| = sqrt(prod k), so ||J|| <= sqrt(prod k) ||M_A|| for every A.
    There are 2^D matrices (groups, rows, columns), the first a view; axis j is in A number i if bit j of i is set. For
    a skew filter A and its complement have equal norms: one of the two is returned.
    """
    blocks = _by_group(weight, groups)
    kernel, axes = blocks.shape[3:], blocks.dim() - 3
    reshapes = []
    for subset in range(2 ** (axes - 1 if skew else axes)):
        inside = [j for j in range(axes) if subset >> j & 1]
        outside = [j for j in range(axes) if not subset >> j & 1]
        rows = blocks.shape[1] * math.prod(kernel[j] for j in inside)
        order = (0, 1, *(3 + j for j in inside), 2, *(3 + j for j in outside))
        reshapes.append(blocks.permute(order).reshape(groups, rows, -1))
    return reshapes


def _by_group(weight: Tensor, groups: int) -> Tensor:
    return weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])


def _is_exactly_skew(weight: Tensor, groups: int) -> bool:
    square = weight.shape[0] == weight.shape[1] * groups
    return square and all(k % 2 for k in weight.shape[2:]) and skew_defect(weight, groups) == 0.0


def _grid_points(weight: Tensor, method: NormMethod, groups: int, grid: IntOrTuple | None) -> tuple[int, ...]:
    """Frequencies per axis: those asked for, or the most that the budget allows for these shapes."""
    kernel = tuple(weight.shape[2:])
    if grid is not None:
        points = per_axis(grid, len(kernel), "grid")
        if any(n < k for n, k in zip(points, kernel, strict=True)):
            raise ArgumentError(
                f"grid={grid!r} is too coarse for the kernel {kernel}: the bound needs at least k frequencies along an "
                "axis of k taps; raise it, or leave it out"
            )
        # The symbol does not vary along an axis with a single tap.
        return tuple(1 if k == 1 else n for n, k in zip(points, kernel, strict=True))
    cost = _operations_a_frequency(weight, method, groups)
    for density in range(_FINEST_GRID, 1, -1):
        points = tuple(max(k, density * (k - 1) // 2) for k in kernel)
        if math.prod(points) * cost <= _OPERATION_BUDGET:
            break
    return points


def _operations_a_frequency(weight: Tensor, method: NormMethod, groups: int) -> float:
    small, large = sorted((weight.shape[0] // groups, weight.shape[1]))
    proof = 8 * rigor.squarings_for(small) * small**3 if method == "gram" else 3 * small**3
    return groups * (8 * small**2 * large + proof + _OPERATIONS_PER_CALL) * (1 if weight.is_complex() else 0.5)


def symbols(blocks: Tensor, points: tuple[int, ...], dilation: tuple[int, ...] | None = None) -> Iterator[Tensor]:
    """S(w) = sum_t W_t e^(-i w d t) over the grid, on the CPU, in batches (b, c_out / groups, c_in / groups).

    A real filter has S(-w) = conj S(w), of equal norm: one of each pair is enough. A complex one has them all.
    """
    groups, rows, columns, *kernel = blocks.shape
    frequencies = grid([torch.arange(n) for n in points])
    if not blocks.is_complex():
        mine, conjugate = frequency_numbers(frequencies, points)
        frequencies = frequencies[mine <= conjugate]
    taps = blocks.reshape(groups * rows * columns, -1).to(torch.complex128)
    chunk = max(1, _CHUNK_BYTES // (16 * sum(taps.shape)))
    for part in frequencies.split(chunk):
        phases = torch.ones(len(part), 1, dtype=torch.complex128)
        for axis, (k, n) in enumerate(zip(kernel, points, strict=True)):
            places = (torch.arange(k) - k // 2) * (1 if dilation is None else dilation[axis])
            phase = waves(part[:, axis], places, n, sign=-1)
            phases = (phases[:, :, None] * phase[:, None, :]).flatten(1)
        yield (phases @ taps.T).reshape(-1, rows, columns)


def symbol_error(blocks: Tensor) -> float:
    """A bound of ||S - fl(S)|| at every frequency.

    An angle errs by 3 u times 2 pi, its cosine and sine by an ulp: under 32 u for each axis. The sum over taps adds
    gamma (Higham, section 3.5). Both multiply sum_t |W_t|, whose Frobenius norm bounds the effect.
    """
    kernel = blocks.shape[3:]
    relative = rigor.gamma(math.prod(kernel) + 4, is_complex=True) + 32 * rigor.UNIT_ROUNDOFF * len(kernel)
    return 2 * relative * _absolute_norm(blocks)


def _absolute_norm(blocks: Tensor) -> float:
    """max over groups of the Frobenius norm of sum_t |W_t|: at least ||S||_F at every frequency."""
    return float(torch.linalg.matrix_norm(blocks.abs().flatten(3).sum(3)).max()) * rigor.MILLIONS_UP


def _gram_error(blocks: Tensor) -> float:
    """A bound of ||S^H S - fl(S^H S)|| at every frequency: gamma_k ||S||_F^2 (Higham, section 3.5)."""
    g = rigor.gamma(max(blocks.shape[1:3]) + 4, is_complex=True)
    return g * _absolute_norm(blocks) ** 2 * rigor.FEW_ROUNDINGS_UP


def _eigenvalue_bound(blocks: Tensor, points: tuple[int, ...], skew: bool, least: float = 1.0) -> float:
    """max over the grid of ||S||, from eigenvalues: of -i S where it is Hermitian, else of S^H S.

    The mean over the grid of ||S e_j||^2 is sum_t ||W_t e_j||^2 (Parseval, N >= k): the search starts there, and at a
    small share of that on a grid of fewer frequencies.
    """
    floor = float(blocks.abs().square().flatten(3).sum((1, 3)).max()) * least
    if skew:
        hermitian = (sign * symbol for symbol in symbols(blocks, points) for sign in (-1j, 1j))
        return rigor.largest_eigenvalue_upper_bound(hermitian, math.sqrt(floor))
    grams = (rigor.small_gram(symbol) for symbol in symbols(blocks, points))
    return math.sqrt(rigor.largest_eigenvalue_upper_bound(grams, floor) + _gram_error(blocks)) * rigor.FEW_ROUNDINGS_UP


def _gram_bound(blocks: Tensor, points: tuple[int, ...]) -> float:
    """max over the grid of ||S|| <= ||(S^H S)^(2^j)||_F^(1 / 2^(j + 1))."""
    steps = rigor.squarings_for(min(blocks.shape[1:3]))
    square = max(rigor.squaring_upper_bound(rigor.small_gram(symbol), steps) for symbol in symbols(blocks, points))
    return math.sqrt(square + _gram_error(blocks)) * rigor.FEW_ROUNDINGS_UP
