"""One matrix a frequency between two tables that stand for a Fourier transform and the way back, as they are stored."""

from dataclasses import dataclass

import numpy as np
from flint import arb

from skewconv.ball.array import BallArray, largest, power_of_two
from skewconv.ball.exact import Floats, sliced
from skewconv.ball.layers import Ready, per_channel
from skewconv.ball.norms import frobenius, spectral_norm_upper_bound
from skewconv.ball.pixels import shuffled, unshuffled


@dataclass(frozen=True)
class Spectral:
    """psi, T' B T for a table T, matrices B and a table T', then the bias; or T' B T, psi back, then the bias.

    For any positive numbers r, one a frequency, B commutes with diag(r), so that ||T' B T|| is at most
    ||T' diag(1 / r)|| ||B|| ||diag(r) T||. Frequencies that stand for two have r = sqrt(2).

    Arguments:
        weight: (frequencies * groups, 2 inputs, 2 outputs), real and imaginary parts side by side.
        forward_table: (2 frequencies, pixels); inverse_table: (pixels, 2 frequencies).
    """

    weight: Floats
    forward_table: Floats
    inverse_table: Floats
    groups: int
    stride: tuple[int, ...]
    upsamples: bool
    bias: Floats | None

    def ready(self) -> Ready:
        blocks = [np.ascontiguousarray(block) for block in self.weight]
        matrices = largest([spectral_norm_upper_bound(block) for block in blocks])
        # The first pixel of the way back has the shares 1 / n and 2 / n of the cosines.
        pixels = self.forward_table.shape[1]
        shares = np.repeat(np.maximum(np.round(self.inverse_table[0, ::2] * pixels), 1.0), 2)
        roots = np.sqrt(shares)
        there = _rounded_norm(roots[:, None] * self.forward_table)
        back = _rounded_norm(self.inverse_table / roots)
        # What each product errs by is stretched by the plain norms of what comes after it.
        forth_norm, back_norm = (_plain_norm(t) for t in (self.forward_table, self.inverse_table))
        bound = (there * matrices * back).upper()
        forth, again = (sliced(np.ascontiguousarray(t.T)) for t in (self.forward_table, self.inverse_table))
        products = [sliced(block) for block in blocks]

        def run(x: BallArray) -> BallArray:
            z = x.mantissa if self.upsamples else unshuffled(x.mantissa, self.stride)
            n, channels, *size = z.shape
            # Run from a point: what was known of x is carried by the bound.
            point = BallArray(z.reshape(n, channels, -1), x.exponent, arb(0))
            waves = point.times(forth, forth_norm)
            # (n, groups, inputs, frequencies, 2) -> frequencies and groups times (n, 2 inputs)
            inputs = channels // self.groups
            split = waves.mantissa.reshape(n, self.groups, inputs, -1, 2).transpose(3, 1, 0, 4, 2)
            rows = split.reshape(len(products), n, 2 * inputs)
            points = [BallArray(part, waves.exponent, arb(0)) for part in rows]
            moved = [point.times(q, matrices) for point, q in zip(points, products, strict=True)]
            exponent = max(part.exponent for part in moved)
            moved = [part.at_exponent(exponent) for part in moved]
            outputs = self.weight.shape[2] // 2
            made = np.stack([part.mantissa for part in moved]).reshape(-1, self.groups, n, 2, outputs)
            columns = made.transpose(2, 1, 4, 0, 3).reshape(n, -1, self.forward_table.shape[0])
            y = BallArray(columns, exponent, (matrices * waves.error).upper())
            for part in moved:
                y = y.with_error(part.error)
            image = y.times(again, back_norm)
            result = image.reshaped(image.mantissa.reshape(n, -1, *size)).with_error(bound * x.error)
            result = result.reshaped(shuffled(result.mantissa, self.stride)) if self.upsamples else result
            return result if self.bias is None else result.plus(per_channel(self.bias, result))

        return Ready(run, bound, {"norm": matrices})


def _rounded_norm(matrix: Floats) -> arb:
    """At least the norm of a matrix each of whose entries was rounded twice."""
    return (spectral_norm_upper_bound(np.ascontiguousarray(matrix)) + power_of_two(-51) * frobenius(matrix)).upper()


def _plain_norm(matrix: Floats) -> arb:
    return spectral_norm_upper_bound(np.ascontiguousarray(matrix))
