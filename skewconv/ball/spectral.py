"""One matrix a frequency between a table that stands for a Fourier transform and its transpose, as they are stored."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb

from skewconv.ball.array import BallArray, largest
from skewconv.ball.exact import Floats, sliced
from skewconv.ball.layers import Ready, per_channel
from skewconv.ball.norms import spectral_norm_upper_bound
from skewconv.ball.pixels import shuffled, unshuffled


@dataclass(frozen=True)
class Spectral:
    """psi, T^t B T for a table T and matrices B, then the bias; or T^t B T, psi back, then the bias.

    Arguments:
        real_weight: (real frequencies * groups, inputs, outputs).
        weight: (pairs of frequencies * groups, 2 inputs, 2 outputs), real and imaginary parts side by side.
        table: (pixels, pixels).
    """

    real_weight: Floats
    weight: Floats
    table: Floats
    groups: int
    stride: tuple[int, ...]
    upsamples: bool
    bias: Floats | None

    def ready(self) -> Ready:
        alone = len(self.real_weight) // self.groups
        blocks = [np.ascontiguousarray(block) for weight in (self.real_weight, self.weight) for block in weight]
        matrices = largest([spectral_norm_upper_bound(block) for block in blocks])
        table_norm = spectral_norm_upper_bound(np.ascontiguousarray(self.table))
        bound = (table_norm * matrices * table_norm).upper()
        forth, back = (sliced(np.ascontiguousarray(t)) for t in (self.table.T, self.table))
        products = [sliced(block) for block in blocks]

        def run(x: BallArray) -> BallArray:
            z = x.mantissa if self.upsamples else unshuffled(x.mantissa, self.stride)
            n, channels, *size = z.shape
            # Run from a point: what was known of x is carried by the bound.
            point = BallArray(z.reshape(n, channels, -1), x.exponent, arb(0))
            waves = point.times(forth, table_norm)
            rows = [*self._rows(waves.mantissa[..., :alone], 1), *self._rows(waves.mantissa[..., alone:], 2)]
            points = [BallArray(part, waves.exponent, arb(0)) for part in rows]
            moved = [point.times(q, matrices) for point, q in zip(points, products, strict=True)]
            exponent = max(part.exponent for part in moved)
            moved = [part.at_exponent(exponent) for part in moved]
            made = [part.mantissa for part in moved]
            columns = [self._columns(made[: len(self.real_weight)], 1)]
            if len(self.weight):
                columns.append(self._columns(made[len(self.real_weight) :], 2))
            y = BallArray(np.concatenate(columns, 2), exponent, (matrices * waves.error).upper())
            for part in moved:
                y = y.with_error(part.error)
            image = y.times(back, table_norm)
            result = image.reshaped(image.mantissa.reshape(n, -1, *size)).with_error(bound * x.error)
            result = result.reshaped(shuffled(result.mantissa, self.stride)) if self.upsamples else result
            return result if self.bias is None else result.plus(per_channel(self.bias, result))

        return Ready(run, bound, {"norm": matrices})

    def _rows(self, waves: Any, parts: int) -> list[Any]:
        """(n, groups * inputs, frequencies * parts) -> frequencies and groups times (n, parts * inputs)."""
        n, channels, _ = waves.shape
        split = waves.reshape(n, self.groups, channels // self.groups, -1, parts).transpose(3, 1, 0, 4, 2)
        return list(split.reshape(-1, n, parts * (channels // self.groups))) if split.size else []

    def _columns(self, made: list[Any], parts: int) -> Any:
        """The way back: (n, groups * outputs, frequencies * parts)."""
        stacked = np.stack(made).reshape(-1, self.groups, len(made[0]), parts, made[0].shape[1] // parts)
        frequencies, groups, n, _, outputs = stacked.shape
        return stacked.transpose(2, 1, 4, 0, 3).reshape(n, groups * outputs, frequencies * parts)
