"""A layer in float64 together with what is proven of it: its Lipschitz constant, its size, its rounding error."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from skewconv.errors import UnboundedModuleError
from skewconv.rigor import UNIT_ROUNDOFF, factor_up, vector_norm_up

# Each bound below is a sum of at most a few products of non-negative floats, which err by less than this factor.
_SUM_UP = factor_up(64)
# Underflow in a product loses less than 2^-1074; no layer has 2^100 products.
_UNDERFLOW = 2.0**-970
#: Nothing overflows while results are below: what a layer adds up on the way there is at most a million times as large.
LARGEST = 2.0**1000


def _product_up(a: float, b: float) -> float:
    """a b for non-negative bounds, rounded up, with room for one more rounding; zero only where a or b is zero."""
    product = a * b * _SUM_UP
    # Near the denormals a product errs by more than a share of itself.
    return math.nextafter(product, math.inf) if product < 2.0**-1000 and a > 0 and b > 0 else product


class Growth(NamedTuple):
    """The function n -> slope n + constant of the norm n of an input, both non-negative.

    >>> Growth(2.0, 1.0).at(3.0) >= 7.0
    True
    """

    slope: float
    constant: float

    def plus(self, other: "Growth") -> "Growth":
        """The sum, rounded up."""
        return Growth((self.slope + other.slope) * _SUM_UP, (self.constant + other.constant) * _SUM_UP)

    def times(self, factor: float) -> "Growth":
        """The multiple, rounded up."""
        return Growth(_product_up(self.slope, factor), _product_up(self.constant, factor))

    def after(self, inner: "Growth") -> "Growth":
        """The composition self(inner(n)), rounded up."""
        constant = (_product_up(self.slope, inner.constant) + self.constant) * _SUM_UP
        return Growth(_product_up(self.slope, inner.slope), constant)

    def at(self, norm: float) -> float:
        """The value at a norm, rounded up."""
        return (_product_up(self.slope, norm) + self.constant) * _SUM_UP

    def stays_below(self, limit: float) -> float:
        """Up to which norm the value is at most this, rounded down; -1 if it never is.

        >>> 2.99 < Growth(2.0, 1.0).stays_below(7.0) <= 3.0
        True
        """
        if not (self.slope >= 0 and self.constant * _SUM_UP <= limit / _SUM_UP):
            return -1.0
        room = limit / _SUM_UP - self.constant * _SUM_UP
        return math.inf if self.slope == 0 else room / self.slope / _SUM_UP**2


NOTHING = Growth(0.0, 0.0)


@dataclass(frozen=True)
class Float64Program:
    """A map f and the float64 program that computes it.

    Args:
        run: (batch, *input) -> (batch, *output), the program.
        shape: of one output.
        lipschitz: a proven Lipschitz constant of f.
        norm: ||f(x)|| <= norm(||x||).
        error: ||run(x) - f(x)|| <= error(||x||), each row of a batch.
        operators: the tensors that the program multiplies by: with the same ones it is the same function.
        matrix: A, (outputs, inputs), where f(x) = A x + b; None where it is not, or not known as a matrix. A model that
            ends in such a map is certified by the differences of the rows of A.
        reach: up to which norm of x nothing overflows on the way to run(x), as far as that is not seen from ``norm``.
    """

    run: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    lipschitz: float
    norm: Growth
    error: Growth
    operators: tuple[Tensor, ...] = ()
    matrix: Tensor | None = None
    reach: float = LARGEST

    def __post_init__(self) -> None:
        object.__setattr__(self, "reach", min(self.reach, self.norm.plus(self.error).stays_below(LARGEST)))

    def then(self, other: "Float64Program") -> "Float64Program":
        """The other after this one: its own error on what was computed, and its stretching of the error made so far."""
        first, second = self.run, other.run
        return Float64Program(
            lambda x: second(first(x)),
            other.shape,
            _product_up(self.lipschitz, other.lipschitz),
            other.norm.after(self.norm),
            other.error.after(self.norm.plus(self.error)).plus(self.error.times(other.lipschitz)),
            self.operators + other.operators,
            reach=min(self.reach, self.norm.plus(self.error).stays_below(other.reach)),
        )

    def added_to(self, other: "Float64Program") -> "Float64Program":
        """The sum of both on the same input; the addition itself rounds once.

        Raises:
            UnboundedModuleError: their outputs differ in shape, so that one would be repeated to fit the other.
        """
        if self.shape != other.shape:
            raise UnboundedModuleError(f"a sum of outputs of the shapes {self.shape} and {other.shape}: have one shape")
        first, second = self.run, other.run
        norm, error = self.norm.plus(other.norm), self.error.plus(other.error)
        return Float64Program(
            lambda x: first(x) + second(x),
            self.shape,
            (self.lipschitz + other.lipschitz) * _SUM_UP,
            norm,
            error.plus(norm.plus(error).times(UNIT_ROUNDOFF)),
            self.operators + other.operators,
            reach=min(self.reach, other.reach),
        )


def proven_program(
    run: Callable[[Tensor], Tensor],
    input_shape: tuple[int, ...],
    lipschitz: float,
    error: Growth,
    device: torch.device,
    operators: Iterable[Tensor | None] = (),
    matrix: Tensor | None = None,
    inner: Growth = NOTHING,
) -> Float64Program:
    """A program whose output shape and norm, ||f(x)|| <= Lip ||x|| + ||f(0)||, are found by running zeros.

    Args:
        inner: a bound of what it computes on the way, where that may be far larger than input and output.
    """
    with torch.no_grad():
        origin = run(torch.zeros(1, *input_shape, dtype=torch.float64, device=device))
    constant = float(vector_norm_up(origin.flatten()))
    error = Growth(error.slope, error.constant + _UNDERFLOW)
    norm = Growth(lipschitz, (constant + error.constant) * _SUM_UP)
    used = tuple(tensor for tensor in operators if tensor is not None)
    reach = inner.stays_below(LARGEST)
    return Float64Program(run, tuple(origin.shape[1:]), lipschitz, norm, error, used, matrix, reach)


def identity_program(shape: tuple[int, ...]) -> Float64Program:
    """x -> x."""
    return Float64Program(lambda x: x, shape, 1.0, Growth(1.0, 0.0), NOTHING)
