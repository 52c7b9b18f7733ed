"""Exact polynomials and Bessel functions: maxima on an interval, changes of basis and enclosures, in integers."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from skewconv.rigor.rounding import FRACTION_BITS, sqrt_up

# Boxes are refined until this number of bits of the maximum agree (more than a float holds), or 100 bits after the
# point when the maximum is close to zero.
_AGREEING_BITS = 60
_NEAR_ZERO = 1 << (FRACTION_BITS - 100)


def _bernstein(power: Sequence[int], denominator: int) -> list[int]:
    """Bernstein coefficients on [0, 1], sum_j C(i, j) power_j / C(n, j), in fixed point and rounded up."""
    n = len(power) - 1
    common = math.lcm(*(math.comb(n, j) for j in range(n + 1)))
    scaled = [p * (common // math.comb(n, j)) for j, p in enumerate(power)]
    exact = (sum(math.comb(i, j) * scaled[j] for j in range(i + 1)) for i in range(n + 1))
    return [-(-(b << FRACTION_BITS) // (denominator * common)) for b in exact]


def _halve(box: list[int]) -> tuple[list[int], list[int]]:
    """De Casteljau's subdivision at the midpoint; each mean is rounded up, so neither half is ever too low."""
    left, right, row = [], [], box
    while row:
        left.append(row[0])
        right.append(row[-1])
        row = [(a + b + 1) >> 1 for a, b in pairwise(row)]
    return left, right[::-1]


def maximum_up(power: Sequence[int], denominator: int) -> Fraction:
    """A number >= max of sum_j power_j v^j / denominator over 0 <= v <= 1, and equal to it to 60 bits.

    A polynomial lies below its largest Bernstein coefficient: boxes are halved until that is as good as attained.
    The constant term is set aside and added exactly, so a maximum at v = 0 comes back without any rounding.
    """
    constant = Fraction(power[0], denominator)
    origin = math.floor(constant * (1 << FRACTION_BITS))
    boxes = [_bernstein([0, *power[1:]], denominator)]
    bound = attained = 0  # both hold at v = 0
    while boxes:
        attained = max(attained, *(max(box[0], box[-1]) for box in boxes))
        enough = attained + max(_NEAR_ZERO, abs(origin + attained) >> _AGREEING_BITS)
        live: list[list[int]] = []
        for box in boxes:
            top = max(box)
            if top <= enough:
                # `attained` only steers the search; the bound is proven by the tops of all boxes put away.
                bound = max(bound, top)
            else:
                live += _halve(box)
        boxes = live
    return constant + Fraction(bound, 1 << FRACTION_BITS)


def chebyshev_to_powers(coefficients: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients in powers of z of sum_k c_k phi_k(z), where phi_{k+1} = 2 z phi_k + phi_{k-1}."""
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


def _enclosed(numerator: int, denominator: int) -> tuple[Fraction, Fraction]:
    """Dyadic numbers of at least FRACTION_BITS bits below and above a fraction: short integers for long ones."""
    shift = max(0, FRACTION_BITS + denominator.bit_length() - abs(numerator).bit_length())
    quotient, rest = divmod(numerator << shift, denominator)
    return Fraction(quotient, 1 << shift), Fraction(quotient + (rest > 0), 1 << shift)


def bessel_majorant_up(rho: float, k: int) -> Fraction:
    """(rho / 2)^k / k!, rounded up: it bounds |J_k(rho)|."""
    numerator, denominator = (Fraction(rho) / 2).as_integer_ratio()
    return _enclosed(numerator**k, denominator**k * math.factorial(k))[1]


@lru_cache(maxsize=8192)
def bessel(rho: float, k: int) -> tuple[Fraction, Fraction]:
    """(c, r) with |J_k(rho) - c| <= r, from J_k = x^k / k! * sum_m (-x^2)^m k! / (m! (m + k)!) with x = rho / 2."""
    if rho == 0:
        return Fraction(k == 0), Fraction(0)
    numerator, denominator = (Fraction(rho) / 2).as_integer_ratio()
    # Terms grow to about e^rho and the sum falls to about e^(-rho / 2): 1.5 log2(e) < 2.5 bits per unit of rho.
    point = FRACTION_BITS + 64 + math.ceil(2.5 * rho)
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
    low, _ = _enclosed(numerator**k * (total - total_error), scale)
    _, high = _enclosed(numerator**k * (total + total_error), scale)
    return (low + high) / 2, (high - low) / 2


def bessel_tail_up(rho: float, degree: int) -> Fraction:
    """2 sum_{k > degree} |J_k(rho)| over even and over odd k, from above, and the root of the sum of their squares.

    In exp(i t) = sum_k c_k i^k T_k(t / rho) the terms with even k are real and those with odd k imaginary, so that the
    two sums bound the two parts of a tail. Terms one by one, then |J_k| <= (rho/2)^k / k! to the end.
    """
    if rho == 0:
        return Fraction(0)
    sums, k = [Fraction(0), Fraction(0)], degree + 1
    while True:
        centre, radius = bessel(rho, k)
        sums[k % 2] += abs(centre) + radius
        k += 1
        # From k >= rho on, each majorant is at most half the one before: together they are at most twice the first.
        if k >= rho and (rest := 2 * bessel_majorant_up(rho, k)) * 2**60 <= max(sums):
            return Fraction(sqrt_up(sum(((2 * (part + rest)) ** 2 for part in sums), Fraction(0))))
