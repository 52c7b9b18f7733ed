"""What an engine is asked to compute."""

from dataclasses import dataclass

import torch

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.polynomials import Polynomial
from skewconv.ops.series import SERIES, Recurrence


@dataclass(frozen=True)
class Application:
    """p(J), or p(-J), on the channels that matter.

    Args:
        steps: the recurrence to run.
        geometry: how the filter meets the image.
        widths: the channels that are read and kept.
        recompute: keep memory independent of the degree.
    """

    steps: Recurrence
    geometry: Geometry
    widths: ChannelWidths
    recompute: bool


def recurrence_of(p: Polynomial, *, inverse: bool = False, recompute: bool = False) -> Recurrence:
    """The recurrence of p(J), or of p(-J) = p(J)^H; one that can be run backwards if terms are to be recomputed.

    A compiler has its own ways to save memory.
    """
    steps = SERIES[p.series].recurrence(p.coefficients, p.norm_bound)
    if recompute and not torch.compiler.is_compiling():
        steps = steps.reversible(p.norm_bound)
    return steps.adjoint() if inverse else steps
