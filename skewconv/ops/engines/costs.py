"""What each engine would do for a request: operation counts from the shapes, and seconds from measured rates.

The model is linear: a fixed time, a time for each call into a library, and a time for each multiply-add, each element
of an image passed over, each element of a filter or matrix passed over, and each element of memory that the system must
hand out anew. ``benchmarks/fit_plan.py`` fits the rates to timings on two cores of a Xeon with AVX-512 in float32, and
``benchmarks/bench_plan.py`` checks what they choose. Only their ratios matter.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines import dense, series, spectral
from skewconv.ops.engines.blocks import block_count, runs
from skewconv.ops.engines.channels import Cut

# oneDNN fills up channels to a multiple of this.
_LANES = 16
# PyTorch multiplies matrices in a loop of its own if each product has fewer multiply-adds.
_LOOPED = 400
# The C library returns blocks from this size (32 MiB) on to the system, which hands them out again page by page.
_KEPT = 2**23


@dataclass(frozen=True)
class Request:
    """Everything a plan may depend on."""

    batch: int
    size: tuple[int, ...]
    geometry: Geometry
    cut: Cut
    degree: int
    dtype: torch.dtype
    needs_grad: bool
    device: str

    @property
    def pixels(self) -> int:
        """Pixels of one image."""
        return math.prod(self.size)

    @property
    def taps(self) -> int:
        """Taps of the filter."""
        return math.prod(self.geometry.kernel)

    @property
    def square(self) -> int:
        """Multiply-adds of all steps for one pixel and one tap: the first and the last step are cut."""
        cut, n = self.cut, self.degree
        if n < 2:
            return n * cut.groups * cut.inputs * cut.outputs
        return cut.groups * cut.channels * (cut.inputs + (n - 2) * cut.channels + cut.outputs)

    @property
    def state(self) -> int:
        """Elements of a batch of images with all channels."""
        return self.batch * self.pixels * self.cut.groups * self.cut.channels

    @property
    def border(self) -> int:
        """Elements of the same images with the border that circular padding attaches to them; none for zeros."""
        if self.geometry.padding_mode != "circular":
            return 0
        sides = zip(self.size, self.geometry.reach, strict=True)
        return self.batch * self.cut.groups * self.cut.channels * math.prod(n + 2 * r for n, r in sides)

    @property
    def matrix(self) -> int:
        """Elements of one tap of the filter."""
        return self.cut.groups * self.cut.channels**2


@dataclass(frozen=True)
class Counts:
    """Forward work; a training step does three times the multiply-adds: forward, adjoint, gradient of the filter."""

    form: str
    calls: float
    multiply_adds: int
    moved: float
    stored: float
    paged: float = 0.0

    def terms(self) -> tuple[float, ...]:
        """What the rates are multiplied with."""
        return 1.0, self.calls, self.multiply_adds, self.moved, self.stored, self.paged


class Rates(NamedTuple):
    """Seconds: once, for each call, multiply-add, element moved, element stored and element handed out anew."""

    fixed: float
    call: float
    multiply_add: float
    moved: float
    stored: float
    paged: float


_TRAINING = {
    "blocks": Rates(0.000301, 2.65e-05, 2.23e-11, 1.21e-09, 1.73e-09, 8.27e-10),
    "columns": Rates(0.0015, 0.000377, 1.26e-11, 1.01e-08, 9.73e-11, 1.16e-09),
    "convolutions": Rates(0.000489, 0.000259, 1.95e-11, 3.12e-09, 1.06e-09, 3.36e-09),
    "fft": Rates(0.000902, 3.5e-08, 2.35e-11, 2.49e-09, 6.05e-10, 1.48e-09),
    "frequencies": Rates(0.000804, 1.44e-07, 1.92e-11, 3.49e-09, 7.34e-10, 1.39e-09),
    "matrix": Rates(0.000245, 2.62e-05, 1.59e-11, 2.32e-09, 2.51e-09, 0.0),
    "one image": Rates(0.00031, 8.48e-05, 1.66e-11, 6.68e-09, 7.77e-10, 0.0),
    "small fft": Rates(0.000653, 1.02e-09, 3.24e-10, 4.53e-09, 3.83e-12, 0.0),
    "uneven convolutions": Rates(0.000331, 0.000275, 1.94e-11, 4.99e-09, 1.16e-09, 3.71e-09),
}
_EVALUATION = {
    "blocks": Rates(7.78e-05, 7.39e-06, 5.66e-12, 4.75e-10, 1.72e-09, 4.97e-10),
    "columns": Rates(4.58e-05, 0.000215, 3.31e-12, 5.05e-09, 3.83e-11, 5.45e-10),
    "convolutions": Rates(4.93e-05, 0.000131, 4.77e-12, 1.62e-09, 2.66e-10, 1.38e-09),
    "fft": Rates(0.000222, 8.11e-09, 1.41e-11, 6.04e-10, 2.7e-10, 1.95e-10),
    "frequencies": Rates(0.000292, 5.46e-08, 6.16e-12, 1.44e-09, 2.16e-10, 1.1e-09),
    "matrix": Rates(5.09e-05, 9.98e-06, 1.01e-11, 4.43e-10, 1.35e-09, 0.0),
    "one image": Rates(6.42e-05, 6.12e-05, 4.01e-12, 1.84e-09, 2.43e-10, 0.0),
    "small fft": Rates(0.000284, 2.13e-10, 2.2e-10, 6.91e-10, 1.04e-12, 0.0),
    "uneven convolutions": Rates(0.000168, 7.28e-05, 5.43e-12, 1.62e-09, 5.38e-10, 1.48e-09),
}


def seconds(request: Request, counts: Counts) -> float:
    """The estimated time of an evaluation, or of a training step if gradients are needed."""
    rates = (_TRAINING if request.needs_grad else _EVALUATION)[counts.form]
    return sum(rate * term for rate, term in zip(rates, counts.terms(), strict=True))


def _paged(*blocks: int) -> int:
    return sum(elements for elements in blocks if elements >= _KEPT)


def count_series(request: Request) -> Counts:
    """A convolution a step, circular padding copies the image to attach its border; or a product with the filter."""
    n, where = request.degree, (request.batch, request.size, request.geometry, request.cut)
    multiply_adds = request.batch * request.pixels * request.taps * request.square
    weight, columns = request.taps * request.matrix, request.taps * request.state
    if series.uses_columns(*where, request.dtype, request.device):
        return Counts("columns", n, multiply_adds, n * columns, n * weight, _paged(weight) + n * _paged(columns))
    form = "one image" if series.is_quick(*where) else "convolutions"
    if form == "convolutions" and request.cut.channels % _LANES:
        form = "uneven convolutions"
    paged = n * _paged(weight, request.state, request.border)
    return Counts(form, n, multiply_adds, n * (request.state + request.border), n * weight, paged)


def count_dense(request: Request) -> Counts:
    """One product a step with the whole matrix, or one for each run of pixels."""
    n, pixels = request.degree, request.pixels
    if dense.uses_matrix(request.cut, request.size):
        whole = pixels**2 * request.matrix
        return Counts("matrix", n, request.batch * pixels**2 * request.square, n * request.state, whole, _paged(whole))
    blocks, calls = block_count(request.geometry, request.size), n * len(runs(request.geometry, request.size))
    weight = request.taps * request.matrix
    return Counts(
        form="blocks",
        calls=calls,
        multiply_adds=request.batch * blocks * request.square,
        moved=n * request.state * blocks / pixels,
        # Each product reads its tap again, from the cache.
        stored=weight + calls * request.matrix / 16,
        paged=_paged(weight),
    )


def count_spectral(request: Request) -> Counts:
    """Transform, a complex product (four real ones) a step and frequency, transform back."""
    cut, n = request.cut, request.degree
    frequencies = math.prod(request.size[:-1]) * (request.size[-1] // 2 + 1)
    whole = spectral.applies_matrix(request.batch, n, cut)
    rows = cut.inputs if whole else request.batch
    products = rows * request.square + whole * request.batch * cut.groups * cut.inputs * cut.outputs
    fourier = request.pixels > spectral.MATRIX_PIXELS
    form = "fft" if fourier else "frequencies"
    if fourier and rows * cut.channels**2 < _LOOPED:
        form = "small fft"
    images = request.pixels * request.batch * cut.groups * (cut.inputs + cut.outputs)
    state, table = 2 * frequencies * rows * cut.groups * cut.channels, 2 * frequencies * request.matrix
    return Counts(
        form=form,
        calls=n * frequencies,
        multiply_adds=4 * frequencies * products + (0 if fourier else 2 * frequencies * images),
        # A transform of n points passes over them as often as the prime factors of n add up to.
        moved=n * state / 2 + images * (1 + fourier * sum(map(_factors, request.size)) / 8),
        stored=table * (1 + n / 2),
        paged=_paged(table) + n * _paged(state),
    )


def _factors(n: int) -> int:
    """The sum of the prime factors of n."""
    for p in range(2, math.isqrt(n) + 1):
        if n % p == 0:
            return p + _factors(n // p)
    return n if n > 1 else 0
