"""p(J) x in float64 with a bound on its rounding error, from the filter and the polynomial alone.

Both series run in a basis of polynomials that are at most one on [-i rho, i rho]. With Z = J / rho, ||Z|| <= 1:

- Chebyshev: phi_1 = Z x, phi_{k+1} = 2 Z phi_k + phi_{k-1}. An error made in phi_j reaches phi_k through the Chebyshev
  polynomial U_{k-j} of the second kind, |U_n| <= n + 1;
- Taylor: phi_{k+1} = Z phi_k. An error reaches phi_k without growing.

A product errs by gamma_m (N ||phi_k|| + ||phi_{k-1}||) with N = || |2 Z| || (|Z| for Taylor), for m = taps * channels +
4 operations in any order (Higham, Lemma 3.1). So phi_k errs by E_k = D_k / (1 - D_n) ||x||, D_k = gamma_m (N + 1) w_k,
with w_k = 1 + 2 + ... + k for Chebyshev and k for Taylor. The sum y = sum_k c_k phi_k then errs by sum_k |c_k| E_k +
gamma_{2 n + 4} sum_k |c_k| (1 + E_n) ||x||.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from skewconv.certify.products import Products, from_pixels, to_pixels
from skewconv.errors import NotFiniteError
from skewconv.ops.convolution import Geometry
from skewconv.ops.series import Polynomial
from skewconv.rigor import MILLIONS_UP, absolute_norm_upper_bound, gamma


@dataclass(frozen=True)
class Exponential:
    """x -> p(J) x for one group, of which the first channels are read and kept.

    Arguments:
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

    def program(self) -> "Program":
        """The filter and the coefficients made ready."""
        return Program(self)

    @property
    def step(self) -> float:
        """The factor of J in the recurrence: 2 / rho or 1 / rho."""
        return self.sign * (2.0 if self.polynomial.series == "chebyshev" else 1.0) / self.polynomial.norm_bound

    @property
    def coefficients(self) -> list[float]:
        """c_k in the basis of phi_k."""
        if self.polynomial.series == "chebyshev":
            return list(self.polynomial.coefficients)
        rho = self.polynomial.norm_bound
        return [c * math.prod([rho] * k) for k, c in enumerate(self.polynomial.coefficients)]

    def rounding_error(self) -> float:
        """The largest ||computed - p(J) x|| / ||x||."""
        degree = self.polynomial.degree
        operations = self.weight[0].numel() + 4
        norm = absolute_norm_upper_bound(self.weight) * abs(self.step)
        chebyshev = self.polynomial.series == "chebyshev"
        step = gamma(operations) * (norm + 1)
        weights = [k * (k + 1) / 2 if chebyshev else float(k) for k in range(degree + 1)]
        worst = step * weights[-1]
        if not worst < 0.5:
            raise NotFiniteError(
                f"the rounding error of a polynomial of degree {degree} on {len(self.weight)} channels cannot be "
                "bounded: the filter is too large or not finite"
            )
        errors = [step * w / (1 - worst) for w in weights]
        sizes = [abs(c) for c in self.coefficients]
        summed = gamma(2 * degree + 4) * sum(sizes) * (1 + errors[-1])
        return (sum(c * e for c, e in zip(sizes, errors, strict=True)) + summed) * MILLIONS_UP


class Program:
    """The recurrence on pixel-major states; (batch, c, *size) -> (batch, outputs, *size) with c <= m."""

    def __init__(self, exponential: Exponential) -> None:
        self.degree, self.outputs = exponential.polynomial.degree, exponential.outputs
        self.channels = exponential.weight.shape[0]
        self.chebyshev = exponential.polynomial.series == "chebyshev"
        self.coefficients = exponential.coefficients
        self.products = Products(exponential.weight * exponential.step, exponential.geometry)

    def __call__(self, x: Tensor) -> Tensor:
        now = to_pixels(x)
        total = now.new_zeros(*now.shape[:-1], self.outputs)
        _add(total, now, self.coefficients[0])
        before: Tensor | None = None
        for k in range(1, self.degree + 1):
            rows = self.outputs if k == self.degree else self.channels
            following = self.products(now, rows, _cut(before, rows) if self.chebyshev else None)
            if k == 1 and self.chebyshev:
                following /= 2  # exact: phi_1 has the factor 1 / rho where the others have 2 / rho
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
