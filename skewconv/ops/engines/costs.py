"""What each engine would do for a request: operation counts from the shapes, and seconds from measured rates.

The model is linear: a fixed time, a time for each call into a library, and a time for each multiply-add, each element
of an image passed over and each element of a filter or matrix passed over. The rates were first fitted to the relative
errors of timings over 1 to 3 axes, and then moved, as little as it takes, to where they choose the engine that was the
fastest on two cores of a Xeon with AVX-512 in float32; ``benchmarks/bench_plan.py`` checks what they choose. Only their
ratios matter.
"""

import math
from dataclasses import dataclass

import torch

from skewconv.ops.convolution import Geometry
from skewconv.ops.engines import dense, series, spectral
from skewconv.ops.engines.blocks import block_count, runs
from skewconv.ops.engines.channels import Cut

# Calls take as long on any number of cores, arithmetic does not; two is what the smallest machines have.
_CORES = 2
# A table of more elements than this does not stay in cache from one step to the next.
_CACHED = 2**20


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


@dataclass(frozen=True)
class Rates:
    """Seconds: once, for each call, multiply-add, element moved and element stored."""

    fixed: float
    call: float
    multiply_add: float
    moved: float
    stored: float

    def seconds(self, counts: Counts) -> float:
        """The time of one evaluation, or of one training step with the rates of training."""
        work = self.multiply_add * counts.multiply_adds + self.moved * counts.moved + self.stored * counts.stored
        return self.fixed + self.call * counts.calls + work / _CORES


_TRAINING = {
    "convolutions": Rates(2.27e-4, 7.19e-5, 7.65e-11, 1.28e-10, 8.58e-10),
    "columns": Rates(1.5e-4, 1e-4, 5e-11, 1e-9, 1.3e-9),
    "blocks": Rates(8.54e-4, 5.82e-5, 8.76e-11, 9.06e-9, 2.42e-9),
    "matrix": Rates(1.56e-4, 0.0, 2.49e-11, 1.27e-10, 1.12e-9),
    "frequencies": Rates(5.35e-4, 0.0, 1.16e-11, 1.77e-9, 3.05e-9),
}
_EVALUATION = {
    "convolutions": Rates(1.51e-4, 3.21e-5, 1.85e-11, 6.07e-10, 6.34e-10),
    "columns": Rates(1.5e-4, 2e-5, 1.7e-11, 1e-9, 3e-10),
    "blocks": Rates(4.81e-4, 5.5e-6, 1.9e-11, 4.81e-9, 1.21e-8),
    "matrix": Rates(1.01e-4, 0.0, 1.33e-11, 0.0, 3.02e-10),
    "frequencies": Rates(2.26e-4, 0.0, 5.87e-12, 2.04e-9, 5.64e-10),
}


def seconds(request: Request, counts: Counts) -> float:
    """The estimated time of an evaluation, or of a training step if gradients are needed."""
    rates = _TRAINING if request.needs_grad else _EVALUATION
    return rates[counts.form].seconds(counts)


def count_series(request: Request) -> Counts:
    """A convolution a step, circular padding copies the image to attach its border; or a product with the filter."""
    n, circular = request.degree, request.geometry.padding_mode == "circular"
    multiply_adds = request.batch * request.pixels * request.taps * request.square
    where = request.batch, request.size, request.geometry, request.cut
    if series.uses_columns(*where, request.dtype, request.device):
        return Counts(
            form="columns",
            calls=n,
            multiply_adds=multiply_adds,
            moved=n * request.state * request.taps,
            stored=n * request.taps * request.matrix,
        )
    quick = series.is_quick(*where)
    return Counts(
        form="convolutions",
        calls=n * ((not quick) + circular),
        multiply_adds=multiply_adds,
        moved=n * request.state * (2.5 if circular else 1.0),
        # oneDNN reorders the filter at each call, the simpler convolution takes it as it is.
        stored=n * request.taps * request.matrix * (1 if quick else 4),
    )


def count_dense(request: Request) -> Counts:
    """One product a step with the whole matrix, or one for each run of pixels."""
    n, pixels = request.degree, request.pixels
    if dense.uses_matrix(request.cut, request.size):
        return Counts(
            form="matrix",
            calls=n,
            multiply_adds=request.batch * pixels**2 * request.square,
            moved=n * request.state,
            stored=n * pixels**2 * request.matrix,
        )
    blocks, calls = block_count(request.geometry, request.size), len(runs(request.geometry, request.size))
    return Counts(
        form="blocks",
        calls=n * calls,
        multiply_adds=request.batch * blocks * request.square,
        moved=n * request.state * (1 + blocks / pixels / 8),
        stored=request.matrix * (request.taps + n * calls / 16),
    )


def count_spectral(request: Request) -> Counts:
    """Transform, a complex product (four real ones) a step and frequency, transform back."""
    cut, n = request.cut, request.degree
    frequencies = math.prod(request.size[:-1]) * (request.size[-1] // 2 + 1)
    whole = spectral.applies_matrix(request.batch, n, cut)
    rows = cut.inputs if whole else request.batch
    products = rows * request.square + whole * request.batch * cut.groups * cut.inputs * cut.outputs
    fourier = request.pixels > spectral.MATRIX_PIXELS
    channels = request.batch * cut.groups * (cut.inputs + cut.outputs)
    transforms = 0 if fourier else 2 * frequencies * request.pixels * channels
    table = frequencies * request.matrix
    return Counts(
        form="frequencies",
        calls=n,
        multiply_adds=4 * frequencies * products + transforms,
        moved=n * frequencies * rows * cut.groups * cut.channels
        + request.pixels * channels * (1 + fourier * math.log2(request.pixels) / 4),
        stored=table * (request.taps + (n if table > _CACHED else 0)),
    )
