"""What layers become when a model is frozen: matrices, one matrix a frequency, one convolution, one residual step.

A layer chooses among them in its ``frozen_form``; each states a gain that is proven for what it stores.
"""

from skewconv.nn.frozen_layers.base import FrozenLayer, FrozenLinearMap
from skewconv.nn.frozen_layers.choices import Form, FrozenChoice
from skewconv.nn.frozen_layers.convolution import FrozenConv
from skewconv.nn.frozen_layers.dense import FrozenDense
from skewconv.nn.frozen_layers.proven_gain import rounded_with_gain
from skewconv.nn.frozen_layers.residual import FrozenResidual
from skewconv.nn.frozen_layers.spectral import FrozenSpectral, frozen_spectral

__all__ = [
    "Form",
    "FrozenChoice",
    "FrozenConv",
    "FrozenDense",
    "FrozenLayer",
    "FrozenLinearMap",
    "FrozenResidual",
    "FrozenSpectral",
    "frozen_spectral",
    "rounded_with_gain",
]
