"""Convolutions and polynomials of a Jacobian in float64, as few large matrix products, with bounds of their rounding.

PyTorch's own convolutions in float64 are slow on a CPU. States are (channels, *size, batch): a filter multiplies from
the left, and a shift along the first axis of the image is a slice. The taps along the last axis lie side by side in
the channels, so that a 3 x 3 filter costs three products.
"""

import math
from collections.abc import Callable
from functools import cached_property
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from skewconv.choices import PaddingMode
from skewconv.errors import NotFiniteError
from skewconv.nn.gains import WAVE_ERROR
from skewconv.nn.primitives import SkewExponential, Spectral
from skewconv.nn.soc.lowered import spectral_operator
from skewconv.ops.convolution import Geometry, odd_filter
from skewconv.ops.fourier import separate_tables
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.series import SERIES
from skewconv.rigor import ERROR_UP, MILLIONS_UP, absolute_norm_upper_bound, gamma


def channels_first(x: Tensor) -> Tensor:
    """(batch, channels, *size) -> (channels, *size, batch): products with filters from the left are fastest."""
    return x.movedim(0, -1).contiguous()


def batch_first(state: Tensor) -> Tensor:
    """(channels, *size, batch) -> (batch, channels, *size)."""
    return state.movedim(-1, 0).contiguous()


class Float64Convolution:
    """state -> W * state for one group of a filter (rows, columns, *kernel) of odd sizes."""

    def __init__(self, weight: Tensor, geometry: Geometry) -> None:
        self.geometry, self.circular = geometry, geometry.padding_mode == "circular"
        # (*leading taps, rows, taps of the last axis, columns)
        self.taps = weight.permute(*range(2, weight.dim() - 1), 0, weight.dim() - 1, 1).contiguous()
        self.leading = weight.shape[2:-1]

    def __call__(self, state: Tensor, rows: int, back: Tensor | None = None) -> Tensor:
        """The first ``rows`` channels of W * state, plus ``back``; the columns are as many as the state has.

        In any order of addition each output is a sum of at most taps * columns products, and of back.
        """
        columns, *size, batch = state.shape
        axes, last = range(len(self.leading)), len(size) - 1
        wide = torch.cat([self._shifted(state, last, s) for s in self._shifts(last)])
        total = (
            state.new_zeros(rows, *size, batch) if back is None else back.clone(memory_format=torch.contiguous_format)
        )
        for tap in product(*map(range, self.leading)):
            matrix = self.taps[tap][:rows, :, :columns].reshape(rows, -1)
            shifts = [self._shifts(axis)[t] for axis, t in zip(axes, tap, strict=True)]
            source, target = wide, total
            if self.circular:
                source = wide.roll([-s for s in shifts], [axis + 1 for axis in axes]) if any(shifts) else wide
            elif all(abs(s) < n for s, n in zip(shifts, size, strict=False)):
                for axis, (s, n) in enumerate(zip(shifts, size, strict=False), 1):
                    source = source.narrow(axis, max(0, s), n - abs(s))
                    target = target.narrow(axis, max(0, -s), n - abs(s))
            else:
                continue
            # Slices along one leading axis are rows of a matrix, along more of them they are not.
            if len(axes) <= 1 or target.is_contiguous():
                target.flatten(1).addmm_(matrix, source.flatten(1))
            else:
                target.add_((matrix @ source.flatten(1)).view_as(target))
        return total

    def _shifts(self, axis: int) -> list[int]:
        kernel, step = self.geometry.kernel[axis], self.geometry.dilation[axis]
        return [step * (t - kernel // 2) for t in range(kernel)]

    def _shifted(self, state: Tensor, axis: int, shift: int) -> Tensor:
        """What a tap of the last axis reads."""
        if shift == 0 or self.circular:
            return state.roll(-shift, axis + 1) if shift else state
        if abs(shift) >= state.shape[axis + 1]:
            return torch.zeros_like(state)
        return F.pad(state, (0, 0, -shift, shift))


def float64_convolution(weight: Tensor, padding_mode: PaddingMode) -> Callable[[Tensor], Tensor]:
    """x -> W * x, (n, c_in, *size) -> (n, c_out, *size), for a filter (c_out, c_in, *kernel) of any sizes."""
    filter_ = odd_filter(weight.detach())
    geometry = Geometry.of(tuple(filter_.shape[2:]), padding_mode, 1, 1)
    convolution = Float64Convolution(filter_, geometry)

    return lambda x: batch_first(convolution(channels_first(x), filter_.shape[0]))


class Float64Exponential:
    """x -> p(J) x, or p(-J) x, for one group: (batch, c, *size) -> (batch, outputs, *size), c <= m of (m, m, *kernel).

    Every series runs in its unit basis, of polynomials at most one on [-i rho, i rho]. With Z = J / rho, ||Z|| <= 1,
    phi_1 = Z x, phi_{k+1} = s Z phi_k + b phi_{k-1}; an error of at most e in a product reaches phi_k as at most e w_k
    (see :class:`skewconv.ops.series.UnitBasis`). A product errs by gamma_m (N ||phi_k|| + ||phi_{k-1}||) with
    N = || |s Z| ||, for m = taps * channels + 4 operations in any order. So phi_k errs by E_k = D_k / (1 - D_n) ||x||,
    D_k = gamma_m (N + 1) w_k. The sum y = sum_k c_k phi_k errs by
    sum_k |c_k| E_k + gamma_{4 n + 8} sum_k |c_k| (1 + E_n) ||x||.
    """

    def __init__(
        self, weight: Tensor, polynomial: Polynomial, geometry: Geometry, outputs: int, sign: float = 1.0
    ) -> None:
        series, rho = SERIES[polynomial.series], polynomial.norm_bound
        self.polynomial, self.weight, self.outputs, self.basis = polynomial, weight, outputs, series.unit_basis
        # The factor of J in the recurrence, and c_k in the basis of phi_k.
        self.step = sign * self.basis.step / rho
        self.coefficients = series.in_unit_basis(polynomial.coefficients, rho)
        self.products = Float64Convolution(weight * self.step, geometry)

    def __call__(self, x: Tensor) -> Tensor:
        # As many images at a time as stay in the cache, or have a state as large as the filter.
        image = len(self.weight) * x[0, 0].numel() if len(x) else 1
        return torch.cat([self._few(part) for part in x.split(max(1, max(2**16, self.weight.numel()) // image))])

    def _few(self, x: Tensor) -> Tensor:
        now = channels_first(x)
        total = now.new_zeros(self.outputs, *now.shape[1:])
        _add(total, now, self.coefficients[0])
        before: Tensor | None = None
        degree = self.polynomial.degree
        for k in range(1, degree + 1):
            rows = self.outputs if k == degree else len(self.weight)
            following = self.products(now, rows, _cut(before, rows) if self.basis.back else None)
            if k == 1 and self.basis.step != 1:
                following /= self.basis.step  # exact: phi_1 has the factor 1 / rho where the others have s / rho
            _add(total, following, self.coefficients[k])
            before, now = now, following
        return batch_first(total)

    def rounding_error(self) -> float:
        """The largest ||computed - p(J) x|| / ||x||."""
        norm = absolute_norm_upper_bound(self.weight) * abs(self.step)
        return recurrence_error(self.polynomial, gamma(self.weight[0].numel() + 4) * (norm + 1))


def recurrence_error(polynomial: Polynomial, step: float) -> float:
    """The largest ||computed - p(J) x|| / ||x|| where every product errs by ``step``, as said above."""
    series, degree = SERIES[polynomial.series], polynomial.degree
    weights = [series.unit_basis.error_weight(k) for k in range(degree + 1)]
    worst = step * weights[-1]
    if not worst < 0.5:
        raise NotFiniteError(
            f"the rounding error of a polynomial of degree {degree} cannot be bounded: the filter has too many "
            "channels, is too large or not finite"
        )
    errors = [step * w / (1 - worst) for w in weights]
    sizes = [abs(c) for c in series.in_unit_basis(polynomial.coefficients, polynomial.norm_bound)]
    # The sum has degree + 1 terms. A coefficient was rounded once when it was stored (the gain of Taylor's polynomial
    # is that of 1 / k! itself), and with each factor rho of its basis, which was rounded itself.
    summed = gamma(4 * degree + 8) * sum(sizes) * (1 + errors[-1])
    return (sum(c * e for c, e in zip(sizes, errors, strict=True)) + summed) * MILLIONS_UP


class Float64Frequencies:
    """x -> p(J) x on a torus by its frequencies: (batch, read, *size) -> (batch, kept, *size), or the adjoint.

    The symbol S of a frequency is a sum of taps times waves, each wave right to a share e. So it errs by
    (e + gamma_taps) || sum_t |W_t| ||_F, which adds to the error of every product of the recurrence. Its basis, monic,
    is the unit basis of :class:`Float64Exponential` but for scales, and relative errors are the same. The recurrence
    runs on the r columns of the identity, so that the matrix p(S) errs by sqrt(r) times the error of one column. The
    two transforms, by tables that are orthogonal but for the errors of their waves, and the matrices between them are
    sums of products.
    """

    def __init__(self, module: SkewExponential) -> None:
        self.module, polynomial, geometry = module, module.polynomial, module.geometry
        weight, groups = module.weight.detach(), geometry.groups
        channels, tables = weight.shape[1], separate_tables(module.image_size)
        columns = min(module.read_channels, module.kept_channels) // groups
        factor = SERIES[polynomial.series].unit_basis.step / polynomial.norm_bound
        taps = weight.unflatten(0, (groups, -1)).flatten(3).abs().sum(3)
        share = (WAVE_ERROR + gamma(math.prod(geometry.kernel) + 4)) * math.sqrt(2)
        symbol = share * float(torch.linalg.matrix_norm(taps).max()) * ERROR_UP
        norm = absolute_norm_upper_bound(weight, groups) + symbol
        products = gamma(channels + 8, is_complex=True) * (factor * norm + 1) + factor * symbol
        # Of the matrices, of the table, and of the three products, each stretched by what is beside it.
        matrices = math.sqrt(columns) * recurrence_error(polynomial, products)
        # An orthogonal matrix of n rows and the rounding of its entries; two of them, one after the other.
        sides = [max(map(len, step)) for step in ([tables[0]], tables[1:])]
        table = sum(math.sqrt(2 * side) for side in sides) * WAVE_ERROR * ERROR_UP
        size, stretch = polynomial.gain[1] + matrices, 1 + table
        run = 2 * sum(gamma(side + 2) * math.sqrt(side) for side in sides) * stretch**2 + (1 + stretch) * table
        run += gamma(2 * channels + 2) * math.sqrt(2 * columns) * stretch**2
        self.rounding_error = (matrices + run * size) * ERROR_UP

    @cached_property
    def spectral(self) -> Spectral:
        m = self.module
        real, pairs = spectral_operator(m)
        return Spectral.of_matrices(
            real,
            pairs,
            [table.to(real) for table in separate_tables(m.image_size)],
            groups=m.geometry.groups,
            stride=m.stride,
            upsamples=m.upsamples,
            input_shape=m.input_shape,
            output_shape=m.output_shape,
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self.spectral.between(x)


def _cut(state: Tensor | None, rows: int) -> Tensor | None:
    """The first channels, with zeros for those that are not there."""
    if state is None or len(state) >= rows:
        return state if state is None else state[:rows]
    return torch.cat([state, state.new_zeros(rows - len(state), *state.shape[1:])])


def _add(total: Tensor, state: Tensor, coefficient: float) -> None:
    channels = min(len(total), len(state))
    total[:channels].add_(state[:channels], alpha=coefficient)
