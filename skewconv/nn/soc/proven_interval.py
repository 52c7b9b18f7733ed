"""The interval that the spectrum of a filter is proven to lie in, on images of one size.

Filters are scaled by a loose bound of their norm (2.1 for 3 x 3), and most have a norm of 1.2 to 1.7. A polynomial for
the interval that is really needed has fewer products at the same error. Freezing always asks for it; eval mode asks for
it in layers with norm="tracked", where the proof is repaid.
"""

import math
from typing import TYPE_CHECKING

from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.norms import norm_upper_bound_at
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.torch_modes import tracing

if TYPE_CHECKING:
    from skewconv.nn.soc.skew_conv import SkewConv

# Another proof of the same norm, by other means, shall find it in the interval of the polynomial too.
_ROOM = 1 + 1e-9
_LEAST = 1e-6
# In eval mode intervals are rounded up to multiples of this: there are few of them, and small changes of a filter leave
# the polynomial as it is, so that its derivative in the filter is exact.
_GRAIN = 1 / 64
# With more channels in a group a proof takes longer than the product that it saves takes for ten thousand images.
_MOST_CHANNELS = 512


def proven_interval(weight: Tensor, size: tuple[int, ...], geometry: Geometry) -> float:
    """A number that ||J|| does not exceed on images of this size, with room for a second proof."""
    g = geometry
    bound = norm_upper_bound_at(weight, size, g.padding_mode, dilation=g.dilation, groups=g.groups)
    return max(bound * _ROOM, _LEAST)


def follows_norm_in_eval(layer: "SkewConv") -> bool:
    """Whether eval mode asks for the interval.

    It does where a tolerance decides how many products there are, and the proof is repaid: a filter of a single tap is
    scaled by its very norm, and one of very many channels takes too long.
    """
    return (
        layer.tracked_norm is not None
        and layer.eval_accuracy.degree is None
        and layer.taps.count > 1
        and layer.channels // layer.groups <= _MOST_CHANNELS
    )


def polynomial_at(layer: "SkewConv", own: Polynomial, size: tuple[int, ...]) -> Polynomial:
    """The polynomial of eval mode for images of this size: ``own``, which serves all sizes, or a shorter one.

    Compilers and transforms hide the values of the filter: they get the one that serves all sizes.
    """
    if tracing():
        return own
    interval = _interval_at(layer, size)
    if not interval < own.norm_bound:
        return own
    interval = math.ceil(interval / _GRAIN) * _GRAIN
    shorter: Polynomial = layer.eval_accuracy.polynomial(min(own.norm_bound, interval))
    return shorter if shorter.degree < own.degree else own


def _interval_at(layer: "SkewConv", size: tuple[int, ...]) -> float:
    sources = layer._sources()

    def prove() -> float:
        return proven_interval(layer._proven_from(sources, ()).weight, size, layer.geometry)

    interval: float = layer._cache.get(layer, sources, ("interval", size), prove)
    return interval
