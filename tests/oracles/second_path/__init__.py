"""The layers of a model evaluated and bounded a second time, for checking certificates only.

What it shares with the path that made the certificates: the model's parameters, and the filter, matrix and polynomial
that they define (``weight``, ``frequency_matrices``, ``polynomial``), taken from a fresh float64 copy without caches;
PyTorch's convolutions and transforms. What it does not share: the forward methods, caches, engines, plans, bounds and
rounding analysis of the layers, nor the float64 program. Norms come from LAPACK, scaled by powers of two; the
polynomial is summed from its last term; its gain is the maximum over a fine grid with Riesz's margin; convolutions are
bounded on the grid of the image itself. A layer that has no rule here is refused by name.
"""

from tests.oracles.second_path.chain import chain, kind_of
from tests.oracles.second_path.layer import Layer
from tests.oracles.second_path.norms import row_distances, spectral_norm
from tests.oracles.second_path.rules import walk

__all__ = ["Layer", "chain", "kind_of", "row_distances", "spectral_norm", "walk"]
