"""Exact integers for the series: outward rounding, Bessel functions, and the maximum of a polynomial, all proven."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

# Fixed-point numbers carry 128 bits after the point; boxes are refined until 60 bits of the maximum agree
# (more than a float holds), or 100 bits after the point when the maximum is close to zero.
POINT = 128
AGREE = 60
FLOOR = 1 << (POINT - 100)


class Enclosure(NamedTuple):
    """A real number known to lie within `radius` of `centre`."""

    centre: Fraction
    radius: Fraction


def float_above(value: Fraction) -> float:
    """The smallest float >= value.

    >>> float_above(Fraction(1)), float_above(Fraction(1, 10)) - 0.1
    (1.0, 0.0)
    """
    nearest = float(value)
    return math.nextafter(nearest, math.inf) if Fraction(nearest) < value else nearest


def float_below(value: Fraction) -> float:
    """The largest float <= value."""
    return -float_above(-value)


def sqrt_enclosure(value: Fraction) -> tuple[float, float]:
    """Floats around sqrt(value), both equal to it where the root is a float.

    >>> sqrt_enclosure(Fraction(1, 4))
    (0.5, 0.5)
    """
    # With 128 or more bits in the integer root, rounding it to a float loses nothing that matters.
    digits = POINT + max(0, value.denominator.bit_length() - value.numerator.bit_length())
    scaled = value * 4**digits
    root = math.isqrt(math.floor(scaled))
    above = root if root * root == scaled else root + 1
    return float_below(Fraction(root, 2**digits)), float_above(Fraction(above, 2**digits))


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _bernstein(power: Sequence[int], denominator: int) -> list[int]:
    """Bernstein coefficients on [0, 1], sum_j C(i, j) power_j / C(n, j), in fixed point and rounded up."""
    n = len(power) - 1
    common = math.lcm(*(math.comb(n, j) for j in range(n + 1)))
    scaled = [p * (common // math.comb(n, j)) for j, p in enumerate(power)]
    exact = (sum(math.comb(i, j) * scaled[j] for j in range(i + 1)) for i in range(n + 1))
    return [_ceil_div(b << POINT, denominator * common) for b in exact]


def _halve(box: list[int]) -> tuple[list[int], list[int]]:
    """De Casteljau's subdivision at the midpoint; each mean is rounded up, so neither half is ever too low."""
    left, right, row = [], [], box
    while row:
        left.append(row[0])
        right.append(row[-1])
        row = [(a + b + 1) >> 1 for a, b in pairwise(row)]
    return left, right[::-1]


def maximum_above(power: Sequence[int], denominator: int) -> Fraction:
    """A number >= max of sum_j power_j v^j / denominator over 0 <= v <= 1, and equal to it to AGREE bits.

    A polynomial lies below its largest Bernstein coefficient: boxes are halved until that is as good as attained.
    The constant term is set aside and added exactly, so a maximum at v = 0 comes back without any rounding.

    >>> float(maximum_above([0, 4, -4], 1))
    1.0
    """
    constant = Fraction(power[0], denominator)
    origin = math.floor(constant * (1 << POINT))
    boxes = [_bernstein([0, *power[1:]], denominator)]
    bound = attained = 0  # both hold at v = 0
    while boxes:
        attained = max(attained, *(max(box[0], box[-1]) for box in boxes))
        enough = attained + max(FLOOR, abs(origin + attained) >> AGREE)
        live: list[list[int]] = []
        for box in boxes:
            top = max(box)
            if top <= enough:
                # `attained` only steers the search; the bound is proven by the tops of all boxes put away.
                bound = max(bound, top)
            else:
                live += _halve(box)
        boxes = live
    return constant + Fraction(bound, 1 << POINT)


def _half(rho: float) -> tuple[int, int]:
    numerator, denominator = rho.as_integer_ratio()
    return numerator, 2 * denominator


def _rounded(numerator: int, denominator: int) -> tuple[Fraction, Fraction]:
    """Dyadic numbers of at least POINT bits below and above a fraction: short integers for long ones."""
    shift = max(0, POINT + denominator.bit_length() - abs(numerator).bit_length())
    quotient, rest = divmod(numerator << shift, denominator)
    return Fraction(quotient, 1 << shift), Fraction(quotient + (rest > 0), 1 << shift)


def bessel_majorant(rho: float, k: int) -> Fraction:
    """(rho / 2)^k / k!, rounded up: it bounds |J_k(rho)|."""
    numerator, denominator = _half(rho)
    return _rounded(numerator**k, denominator**k * math.factorial(k))[1]


@lru_cache(maxsize=8192)
def bessel(rho: float, k: int) -> Enclosure:
    """J_k(rho) = x^k / k! * sum_m (-x^2)^m k! / (m! (m + k)!) with x = rho / 2, enclosed.

    >>> float(bessel(2.0, 1).centre), bessel(2.0, 1).radius < 1e-30
    (0.5767248077568734, True)
    """
    if rho == 0:
        return Enclosure(Fraction(k == 0), Fraction(0))
    numerator, denominator = _half(rho)
    # Terms grow to about e^rho and the sum falls to about e^(-rho / 2): 1.5 log2(e) < 2.5 bits per unit of rho.
    point = POINT + 64 + math.ceil(2.5 * rho)
    term = total = 1 << point
    error = total_error = 0  # in units of the last place
    m = 0
    while term or 2 * numerator**2 > denominator**2 * (m + 1) * (m + 1 + k):
        m += 1
        top, bottom = numerator**2, denominator**2 * m * (m + k)
        term = term * top // bottom
        error = error * top // bottom + 2  # the old error carried on, this floor, and the floor just taken
        total += -term if m % 2 else term
        total_error += error
    # The last true term is at most `error`, and each one after it at most half the one before.
    total_error += error
    scale = denominator**k * math.factorial(k) << point
    low, _ = _rounded(numerator**k * (total - total_error), scale)
    _, high = _rounded(numerator**k * (total + total_error), scale)
    return Enclosure((low + high) / 2, (high - low) / 2)


def bessel_tail(rho: float, degree: int) -> Fraction:
    """2 sum_{k > degree} |J_k(rho)|, from above: terms one by one, then |J_k| <= (rho/2)^k / k! to the end."""
    if rho == 0:
        return Fraction(0)
    total, k = Fraction(0), degree + 1
    while True:
        centre, radius = bessel(rho, k)
        total += abs(centre) + radius
        k += 1
        # From k >= rho on, each majorant is at most half the one before: together they are at most twice the first.
        if k >= rho and (rest := 2 * bessel_majorant(rho, k)) * 2**60 <= total:
            return 2 * (total + rest)


def chebyshev_to_powers(coefficients: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients in powers of z of sum_k c_k phi_k(z), where phi_{k+1} = 2 z phi_k + phi_{k-1}.

    >>> [int(a) for a in chebyshev_to_powers([Fraction(0), Fraction(0), Fraction(1)])]
    [1, 0, 2]
    """
    total = [Fraction(0)] * len(coefficients)
    phi, previous = [1], [0, -1]  # phi_0, and the phi_{-1} from which the recurrence makes phi_1 = z
    for c in coefficients:
        for k, a in enumerate(phi):
            total[k] += c * a
        following = [0] + [2 * a for a in phi]
        for k, a in enumerate(previous):
            following[k] += a
        phi, previous = following, phi
    return total


def squared_modulus(powers: Sequence[Fraction]) -> tuple[list[int], int]:
    """|sum_k a_k (i s)^k|^2 as a polynomial in v = s^2: integer coefficients over one denominator.

    It is A^2 + v B^2 with A = sum_j a_2j (-v)^j and B = sum_j a_2j+1 (-v)^j.

    >>> squared_modulus([Fraction(1), Fraction(1), Fraction(1, 2)])
    ([4, 0, 1], 4)
    """
    denominator = math.lcm(*(a.denominator for a in powers))
    whole = [a.numerator * (denominator // a.denominator) for a in powers]
    squared = [0] * len(whole)
    for offset in (0, 1):
        part = [(-1) ** j * a for j, a in enumerate(whole[offset::2])]
        for i, a in enumerate(part):
            for j, b in enumerate(part):
                squared[i + j + offset] += a * b
    return squared, denominator**2
