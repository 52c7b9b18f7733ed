"""What a plan compares: operation counts from the shapes of a request, and seconds from measured rates.

The model is linear: a fixed time, a time for each call into a library, and a time for each multiply-add, each element
of an image passed over, each element of a filter or matrix passed over, and each element of memory that the system must
hand out anew. ``benchmarks/fit_plan.py`` fits the rates to timings on two cores of a Xeon with AVX-512 in float32, and
``benchmarks/bench_plan.py`` checks what they choose. Only their ratios matter. Each engine states its own.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines.channels import ChannelWidths

HALF_PRECISION = (torch.float16, torch.bfloat16)

# The C library returns blocks from this size (32 MiB) on to the system, which hands them out again page by page.
_RETURNED_BLOCK = 2**23


@dataclass(frozen=True)
class Request:
    """Everything a plan may depend on; the truncation error is that of the polynomial, which hides smaller ones."""

    batch: int
    size: tuple[int, ...]
    geometry: Geometry
    widths: ChannelWidths
    degree: int
    dtype: torch.dtype
    needs_grad: bool
    device: str
    truncation_error: float = 0.0

    @property
    def pixels(self) -> int:
        """Pixels of one image."""
        return math.prod(self.size)

    @property
    def taps(self) -> int:
        """Taps of the filter."""
        return math.prod(self.geometry.kernel)

    @property
    def multiply_adds_per_tap(self) -> int:
        """Multiply-adds of all steps for one pixel and one tap: the first reads and the last keeps fewer channels.

        Three steps with 6 channels, of which 3 are read and 5 kept, take 6 * 3 + 6 * 6 + 5 * 6.
        """
        widths, n = self.widths, self.degree
        if n < 2:
            return n * widths.groups * widths.inputs * widths.outputs
        return widths.groups * widths.channels * (widths.inputs + (n - 2) * widths.channels + widths.outputs)

    @property
    def state_elements(self) -> int:
        """Elements of a batch of images with all channels."""
        return self.batch * self.pixels * self.widths.groups * self.widths.channels

    @property
    def bordered_elements(self) -> int:
        """Elements of the same images with the border that circular padding attaches to them; none for zeros."""
        if self.geometry.padding_mode != "circular":
            return 0
        sides = zip(self.size, self.geometry.reach, strict=True)
        return self.batch * self.widths.groups * self.widths.channels * math.prod(n + 2 * r for n, r in sides)

    @property
    def tap_elements(self) -> int:
        """Elements of one tap of the filter."""
        return self.widths.groups * self.widths.channels**2


class Rates(NamedTuple):
    """Seconds: once, for each call, multiply-add, element moved, element stored and element handed out anew."""

    fixed: float
    call: float
    multiply_add: float
    moved: float
    stored: float
    handed_out: float


@dataclass(frozen=True)
class Form:
    """A way in which an engine multiplies, with the rates of a training step and of an evaluation."""

    name: str
    training: Rates
    evaluation: Rates


@dataclass(frozen=True)
class Counts:
    """Forward work; a training step does three times the multiply-adds: forward, adjoint, gradient of the filter.

    Args:
        form: how it is done.
        calls: into a library.
        multiply_adds: all of them.
        moved: elements of images passed over.
        stored: elements of filters and matrices passed over.
        handed_out: elements of memory that the system hands out anew; see :func:`handed_out_anew`.
    """

    form: Form
    calls: float
    multiply_adds: int
    moved: float
    stored: float
    handed_out: float = 0.0

    def terms(self) -> tuple[float, ...]:
        """What the rates are multiplied with."""
        return 1.0, self.calls, self.multiply_adds, self.moved, self.stored, self.handed_out


def seconds(request: Request, counts: Counts) -> float:
    """The estimated time of an evaluation, or of a training step if gradients are needed."""
    rates = counts.form.training if request.needs_grad else counts.form.evaluation
    return sum(rate * term for rate, term in zip(rates, counts.terms(), strict=True))


def handed_out_anew(*blocks: int) -> int:
    """The elements of those blocks of memory that are too large for the C library to keep."""
    return sum(elements for elements in blocks if elements >= _RETURNED_BLOCK)
