"""p(J) x in float64 with a bound on its rounding error, from the filter and the polynomial alone.

Every series runs in its unit basis, of polynomials at most one on [-i rho, i rho]: with Z = J / rho, ||Z|| <= 1,
phi_1 = Z x, phi_{k+1} = s Z phi_k + b phi_{k-1}; an error of at most e in every product reaches phi_k as at most e w_k
(see :class:`skewconv.ops.series.UnitBasis`).

A product errs by gamma_m (N ||phi_k|| + ||phi_{k-1}||) with N = || |s Z| ||, for m = taps * channels + 4 operations in
any order (Higham, Lemma 3.1). So phi_k errs by E_k = D_k / (1 - D_n) ||x||, D_k = gamma_m (N + 1) w_k. The sum
y = sum_k c_k phi_k then errs by sum_k |c_k| E_k + gamma_{2 n + 4} sum_k |c_k| (1 + E_n) ||x||.
"""

from dataclasses import dataclass

from torch import Tensor

from skewconv.certify.float64_convolution import Float64Convolution, from_pixels, to_pixels
from skewconv.errors import NotFiniteError
from skewconv.ops.convolution import Geometry
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.series import SERIES, UnitBasis
from skewconv.rigor import MILLIONS_UP, absolute_norm_upper_bound, gamma


@dataclass(frozen=True)
class Float64Exponential:
    """x -> p(J) x for one group, of which the first channels are read and kept.

    Args:
        weight: (m, m, *kernel), float64, a skew filter with ||J|| <= polynomial.norm_bound.
        polynomial: p.
        geometry: padding and dilation.
        outputs: the channels kept.
        sign: -1 for p(-J).
    """

    weight: Tensor
    polynomial: Polynomial
    geometry: Geometry
    outputs: int
    sign: float = 1.0

    def program(self) -> "_Recurrence":
        """The filter and the coefficients made ready."""
        return _Recurrence(self)

    @property
    def basis(self) -> UnitBasis:
        """The basis of phi_k."""
        return SERIES[self.polynomial.series].unit_basis

    @property
    def step(self) -> float:
        """The factor of J in the recurrence: s / rho."""
        return self.sign * self.basis.step / self.polynomial.norm_bound

    @property
    def coefficients(self) -> list[float]:
        """c_k in the basis of phi_k."""
        p = self.polynomial
        return SERIES[p.series].in_unit_basis(p.coefficients, p.norm_bound)

    def rounding_error(self) -> float:
        """The largest ||computed - p(J) x|| / ||x||."""
        degree = self.polynomial.degree
        operations = self.weight[0].numel() + 4
        norm = absolute_norm_upper_bound(self.weight) * abs(self.step)
        step = gamma(operations) * (norm + 1)
        weights = [self.basis.error_weight(k) for k in range(degree + 1)]
        worst = step * weights[-1]
        if not worst < 0.5:
            raise NotFiniteError(
                f"the rounding error of a polynomial of degree {degree} on {len(self.weight)} channels cannot be "
                "bounded: the filter is too large or not finite"
            )
        errors = [step * w / (1 - worst) for w in weights]
        sizes = [abs(c) for c in self.coefficients]
        # The sum has degree + 1 terms, and a coefficient was rounded degree + 1 times at most: once when it was stored
        # (the gain of Taylor's polynomial is that of 1 / k! itself), and once for each factor rho of its basis.
        summed = gamma(2 * degree + 4) * sum(sizes) * (1 + errors[-1])
        return (sum(c * e for c, e in zip(sizes, errors, strict=True)) + summed) * MILLIONS_UP


class _Recurrence:
    """The recurrence on pixel-major states; (batch, c, *size) -> (batch, outputs, *size) with c <= m."""

    def __init__(self, exponential: Float64Exponential) -> None:
        self.degree, self.outputs = exponential.polynomial.degree, exponential.outputs
        self.channels = exponential.weight.shape[0]
        self.basis = exponential.basis
        self.coefficients = exponential.coefficients
        self.products = Float64Convolution(exponential.weight * exponential.step, exponential.geometry)

    def __call__(self, x: Tensor) -> Tensor:
        now = to_pixels(x)
        total = now.new_zeros(*now.shape[:-1], self.outputs)
        _add(total, now, self.coefficients[0])
        before: Tensor | None = None
        for k in range(1, self.degree + 1):
            rows = self.outputs if k == self.degree else self.channels
            following = self.products(now, rows, _cut(before, rows) if self.basis.back else None)
            if k == 1 and self.basis.step != 1:
                following /= self.basis.step  # exact: phi_1 has the factor 1 / rho where the others have s / rho
            _add(total, following, self.coefficients[k])
            before, now = now, following
        return from_pixels(total)


def _cut(state: Tensor | None, rows: int) -> Tensor | None:
    """The first channels, with zeros for those that are not there."""
    if state is None or state.shape[-1] == rows:
        return state
    if state.shape[-1] > rows:
        return state[..., :rows]
    wide = state.new_zeros(*state.shape[:-1], rows)
    wide[..., : state.shape[-1]] = state
    return wide


def _add(total: Tensor, state: Tensor, coefficient: float) -> None:
    channels = min(total.shape[-1], state.shape[-1])
    total[..., :channels].add_(state[..., :channels], alpha=coefficient)
