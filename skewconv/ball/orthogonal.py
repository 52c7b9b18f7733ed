"""Orthogonal convolutions that are circular: BCOP by its filter, Cayley by one matrix a frequency."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as choices

import numpy as np
import numpy.typing as npt
from flint import arb

from skewconv.ball.array import BallArray, largest, power_of_two
from skewconv.ball.exact import Floats, sliced
from skewconv.ball.layers import Ready, per_channel
from skewconv.ball.norms import nearly_orthogonal_norm_upper_bound
from skewconv.ball.pixels import as_matrix, patches, unshuffled

Complex = npt.NDArray[np.complex128]


@dataclass(frozen=True)
class Circular:
    """A circular convolution with a filter (c_out, c_in, k, k) that is nearly orthogonal, after psi.

    J^T J is the convolution with E_t = sum_u F_u^T F_(u+t), so that ||J||^2 <= sum_t ||E_t||.
    """

    weight: Floats
    stride: tuple[int, ...]
    bias: Floats | None

    def ready(self) -> Ready:
        kernel = self.weight.shape[2:]
        places = list(choices(*map(range, kernel)))
        tall = self.weight.shape[0] >= self.weight.shape[1]
        taps = [self.weight[:, :, i, j] if tall else self.weight[:, :, i, j].T for i, j in places]
        norm = nearly_orthogonal_norm_upper_bound(taps, differences(places))
        matrix = sliced(as_matrix(self.weight))

        def run(x: BallArray) -> BallArray:
            folded = x.reshaped(unshuffled(x.mantissa, self.stride))
            y = folded.reshaped(patches(folded.mantissa, kernel, (1, 1), "circular")).times(matrix, norm)
            y = y.reshaped(np.moveaxis(y.mantissa, -1, 1))
            return y if self.bias is None else y.plus(per_channel(self.bias, y))

        return Ready(run, norm, {"norm": norm})


def differences(places: Sequence[tuple[int, ...]]) -> list[list[tuple[int, int]]]:
    """For each difference of two places, one of t and -t, the pairs of numbers that have it; first that of t = 0."""
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for u, here in enumerate(places):
        for v, there in enumerate(places):
            difference = tuple(b - a for a, b in zip(here, there, strict=True))
            if difference >= (0,) * len(difference):
                found.setdefault(difference, []).append((u, v))
    return [found[difference] for difference in sorted(found)]


@dataclass(frozen=True)
class Spectral:
    """y = F^-1 Q F x after psi, with Q given at the frequencies of a real transform.

    Arguments:
        matrices: (h, w // 2 + 1, c_out, c_in), for images h x w after psi.
        columns: w.
    """

    matrices: Complex
    columns: int
    stride: tuple[int, ...]
    bias: Floats | None

    def ready(self) -> Ready:
        h, half = self.matrices.shape[:2]
        flat = self.matrices.reshape(h * half, *self.matrices.shape[2:])
        # Q = A + i B acts on (real, imaginary) as [[A, -B], [B, A]].
        real = [np.block([[q.real, -q.imag], [q.imag, q.real]]) for q in flat]
        tall = [q if q.shape[0] >= q.shape[1] else q.T for q in real]
        norm = largest([nearly_orthogonal_norm_upper_bound([q], [[(0, 0)]]) for q in tall])
        waves = _waves(h, self.columns)
        # What a frequency stands for: itself, or itself and its conjugate.
        share = np.full(half, 2.0)
        share[0] = 1.0
        share[-1] = 1.0 if self.columns % 2 == 0 else share[-1]
        forth, back = sliced(waves.T), sliced(waves * np.tile(share, 2 * h)[:, None])
        matrices = [sliced(np.ascontiguousarray(q.T)) for q in real]
        # Entries right to 2^-53, twice that where they are doubled.
        unsure = power_of_two(-52) * arb(waves.size).sqrt()
        root = arb(2).sqrt()

        def run(x: BallArray) -> BallArray:
            x = x.reshaped(unshuffled(x.mantissa, self.stride))
            n, channels, *size = x.mantissa.shape
            spectrum = x.reshaped(x.mantissa.reshape(n, channels, -1)).times(forth, arb(1))
            spectrum = spectrum.with_error(unsure * (x.norm() + x.error))
            # (n, channels, 2, frequencies) -> frequencies times (n, 2 channels)
            parts = (
                np.moveaxis(spectrum.mantissa.reshape(n, channels, 2, -1), -1, 0)
                .swapaxes(2, 3)
                .reshape(-1, n, 2 * channels)
            )
            moved = [
                BallArray(p, spectrum.exponent, arb(0)).times(q, norm) for p, q in zip(parts, matrices, strict=True)
            ]
            exponent = max(p.exponent for p in moved)
            moved = [p.at_exponent(exponent) for p in moved]
            together = np.stack([p.mantissa for p in moved]).reshape(len(moved), n, 2, -1)
            y = BallArray(
                together.transpose(1, 3, 2, 0).reshape(n, together.shape[3], -1), exponent, norm * spectrum.error
            )
            for part in moved:
                y = y.with_error(part.error)
            image = y.times(back, root).with_error(unsure * (y.norm() + y.error))
            image = image.reshaped(image.mantissa.reshape(n, -1, *size))
            return image if self.bias is None else image.plus(per_channel(self.bias, image))

        return Ready(run, norm, {"norm": norm})


def _waves(h: int, w: int) -> Floats:
    """(2 h (w // 2 + 1), h w): cosines, then negative sines, of each frequency at each pixel, over sqrt(h w)."""
    angles = [arb(2 * j) / (h * w) for j in range(h * w)]
    root = arb(h * w).sqrt()
    cosines = np.array([float(a.cos_pi() / root) for a in angles])
    sines = np.array([float(a.sin_pi() / root) for a in angles])
    u, v = np.arange(h)[:, None], np.arange(w // 2 + 1)[None, :]
    p, q = np.arange(h)[:, None], np.arange(w)[None, :]
    turns = (np.outer(u + 0 * v, p + 0 * q) * w + np.outer(v + 0 * u, q + 0 * p) * h) % (h * w)
    return np.concatenate([cosines[turns], -sines[turns]])
