"""What an engine is asked to compute."""

from dataclasses import dataclass

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.engines.steps import steps_of
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.series import Recurrence


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

    def steps(self) -> Recurrence:
        """The recurrence to run."""
        return steps_of(self.polynomial, inverse=self.inverse, recompute=self.recompute)
