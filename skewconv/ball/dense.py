"""A matrix between all entries of images, as a frozen layer stores it."""

from dataclasses import dataclass

import numpy as np

from skewconv.ball.array import BallArray
from skewconv.ball.exact import Floats, sliced
from skewconv.ball.layers import Ready, per_channel
from skewconv.ball.norms import spectral_norm_upper_bound


@dataclass(frozen=True)
class Dense:
    """W x + b for x with all entries in a row, b one for each channel.

    Arguments:
        weight: (entries out, entries in).
        output_shape: (channels, *size).
        bias: (channels,) or None.
    """

    weight: Floats
    output_shape: tuple[int, ...]
    bias: Floats | None

    def ready(self) -> Ready:
        norm, matrix = spectral_norm_upper_bound(self.weight), sliced(np.ascontiguousarray(self.weight.T))

        def run(x: BallArray) -> BallArray:
            y = x.reshaped(x.mantissa.reshape(len(x.mantissa), -1)).times(matrix, norm)
            y = y.reshaped(y.mantissa.reshape(len(y.mantissa), *self.output_shape))
            return y if self.bias is None else y.plus(per_channel(self.bias, y))

        return Ready(run, norm, {"norm": norm})
