"""The interval that the spectrum of a filter is proven to lie in, on images of one size.

Filters are scaled by a loose bound of their norm (2.1 for 3 x 3), and most have a norm of 1.2 to 1.7. A polynomial for
the interval that is really needed has fewer products at the same error. Freezing always asks for it; eval mode asks for
it in layers with norm="tracked".
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from skewconv.ops.convolution import Geometry
from skewconv.ops.norms import norm_upper_bound_at
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.torch_modes import batched, jit_tracing, outside_transforms

if TYPE_CHECKING:
    from skewconv.nn.soc.skew_conv import SkewConv
    from skewconv.nn.soc.skew_filter import ProvenFilter

# Another proof of the same norm, by other means, shall find it in the interval of the polynomial too.
_ROOM = 1 + 1e-9
_LEAST = 1e-6
# In eval mode intervals are rounded up to multiples of this: there are few of them, and small changes of a filter leave
# the polynomial as it is, so that its derivative in the filter is exact.
_GRAIN = 1 / 64


def proven_interval(weight: Tensor, size: tuple[int, ...], geometry: Geometry) -> float:
    """A number that ||J|| does not exceed on images of this size, with room for a second proof."""
    g = geometry
    bound = norm_upper_bound_at(weight, size, g.padding_mode, dilation=g.dilation, groups=g.groups)
    return max(bound * _ROOM, _LEAST)


def follows_norm_in_eval(layer: "SkewConv") -> bool:
    """Whether eval mode asks for the interval.

    It does where a tolerance decides how many products there are. A filter of a single tap is scaled by its very norm,
    so that nothing would repay the proof.
    """
    accuracy = layer.eval_accuracy
    by_tolerance = accuracy.degree is None and accuracy.non_expansive
    return layer.tracked_norm is not None and by_tolerance and layer.taps.count > 1


def polynomial_at(layer: "SkewConv", own: Polynomial, size: tuple[int, ...]) -> Polynomial:
    """The polynomial of eval mode for images of this size: ``own``, which serves all sizes, or a shorter one.

    Compilers, traces and stacks of models do not know the values of the filter, or meet other sizes later: they get the
    one that serves all.
    """
    sources = layer._sources()
    if torch.compiler.is_compiling() or jit_tracing() or any(batched(s) or s.is_meta for s in sources):
        return own
    interval = _interval_at(layer, size)
    if not interval < own.norm_bound:
        return own
    interval = math.ceil(interval / _GRAIN) * _GRAIN
    shorter: Polynomial = layer.eval_accuracy.polynomial(min(own.norm_bound, interval))
    return shorter if shorter.degree < own.degree else own


def _interval_at(layer: "SkewConv", size: tuple[int, ...]) -> float:
    proven: ProvenFilter = layer._proven()
    if size not in proven.intervals:
        with outside_transforms(), torch.inference_mode(False), torch.no_grad():
            proven.intervals[size] = proven_interval(proven.weight, size, layer.geometry)
    return proven.intervals[size]
