"""What an engine is asked to compute."""

from dataclasses import dataclass
from functools import cached_property

import torch

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.series import SERIES, Recurrence


@dataclass(frozen=True)
class Application:
    """p(J), or p(-J), on the channels that matter.

    Args:
        polynomial: p.
        geometry: how the filter meets the image.
        widths: the channels that are read and kept.
        inverse: apply p(-J) = p(J)^H.
        recompute: keep memory independent of the degree.
    """

    polynomial: Polynomial
    geometry: Geometry
    widths: ChannelWidths
    inverse: bool
    recompute: bool

    @cached_property
    def steps(self) -> Recurrence:
        """The recurrence to run; one that can be run backwards if terms are to be recomputed.

        A compiler has its own ways to save memory.
        """
        p = self.polynomial
        steps = SERIES[p.series].recurrence(p.coefficients, p.norm_bound)
        if self.recompute and not torch.compiler.is_compiling():
            steps = steps.reversible(p.norm_bound)
        return steps.adjoint() if self.inverse else steps
