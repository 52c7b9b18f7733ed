"""The bound on rounding errors, against evaluation with fifty digits."""

import math

import mpmath
import pytest
import torch
from torch import Tensor, nn

from skewconv.certify import Certifier, float64_products
from skewconv.certify.programs import _has_short_frequencies
from skewconv.nn import BCOP2d, Cayley2d, Householder, MaxMin, Normalize, SOC2d, SOCTranspose2d, lower
from skewconv.nn.linear import NormalizedLinear, OrthogonalLinear
from skewconv.nn.primitives import Spectral
from skewconv.nn.soc import lowered
from skewconv.ops.engines.dense_engine import dense_jacobian
from skewconv.ops.engines.spectral_engine import symbol
from skewconv.ops.fourier import separate_tables
from tests.certify.oracles import float64_program

mpmath.mp.dps = 50


def exactly(tensor: Tensor) -> mpmath.matrix:
    return mpmath.matrix([[mpmath.mpf(v) for v in row] for row in tensor.detach().double().tolist()])


def column(x: Tensor) -> mpmath.matrix:
    return exactly(x.flatten()[:, None])


def error_of(computed: Tensor, exact: mpmath.matrix) -> float:
    return float(mpmath.norm(column(computed) - exact))


def soc_exactly(layer: SOC2d, state: mpmath.matrix, size: tuple[int, ...]) -> mpmath.matrix:
    """p(J) x by its series in fifty digits; as many channels in as out."""
    p = layer.polynomial()
    jacobian = exactly(dense_jacobian(layer.weight.detach(), size, layer.padding_mode, groups=layer.groups))
    rho = mpmath.mpf(p.norm_bound)
    if p.series == "taylor":
        terms = [state]
        for k in range(1, p.degree + 1):
            terms.append(jacobian * terms[-1] / k)
        return sum(terms[1:], terms[0])
    terms = [state, jacobian * state / rho]
    for _ in range(2, p.degree + 1):
        terms.append(2 * (jacobian * terms[-1]) / rho + terms[-2])
    parts = [mpmath.mpf(c) * term for c, term in zip(p.coefficients, terms, strict=True)]
    return sum(parts[1:], parts[0])


def double(module: nn.Module) -> nn.Module:
    return module.double().eval().requires_grad_(False)


def assert_error_below_bound(layer: nn.Module, x: Tensor, exact: mpmath.matrix, limit: float = 1e-13) -> None:
    program = float64_program(layer, tuple(x.shape[1:]))
    assert 0 < error_of(program.run(x)[0], exact) <= program.bounds.error.at(float(x.norm())) < limit


@pytest.mark.parametrize("series", ["taylor", "chebyshev"])
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("images", [1, 40])
def test_the_exponential_errs_by_less_than_its_bound(series, padding_mode, groups, images):
    """One image by the recurrence; on a torus many by their frequencies."""
    options = {"eval_degree": 9} if series == "taylor" else {}
    layer = double(SOC2d(2, 2, 3, series=series, padding_mode=padding_mode, groups=groups, bias=False, **options))
    x = torch.rand(images, 2, 3, 3, dtype=torch.float64)
    program = float64_program(layer, (2, 3, 3))
    made, x = program.run(x)[-1], x[-1]
    error = error_of(made, soc_exactly(layer, column(x), (3, 3)))
    bound = program.bounds.error.at(float(x.norm()))
    assert 0 < error <= bound < 1e-11
    # The bound is not so wide that lower precision would slip through: float32 is outside it.
    coarse = program.run(x[None].float().double() * (1 + 2**-24))[0]
    assert error_of(coarse, soc_exactly(layer, column(x), (3, 3))) > bound


@pytest.mark.parametrize("options", [{"stride": 2}, {"stride": 2, "transposed": True}, {"groups": 2}])
def test_frequencies_compute_what_the_recurrence_computes(options, monkeypatch):
    kind = SOCTranspose2d if options.pop("transposed", False) else SOC2d
    layer = double(kind(4, 8 if kind is SOC2d else 2, 3, padding_mode="circular", **options))
    x = torch.rand(40, 4, 6, 10, dtype=torch.float64)
    program = float64_program(layer, (4, 6, 10))
    by_recurrence = torch.cat([program.run(image[None]) for image in x])
    apart = (program.run(x) - by_recurrence).flatten(1).norm(dim=1)
    allowed = 2 * program.bounds.error.at(1.0) * x.flatten(1).norm(dim=1)
    assert bool((apart > 0).any())
    assert bool((apart <= allowed).all())
    assert float(allowed.max()) < 1e-9
    # A wave that is off by more than its error shows.
    monkeypatch.setattr(float64_products, "separate_tables", lambda size: [t + 1e-9 for t in separate_tables(size)])
    spoiled = float64_program(layer, (4, 6, 10)).run(x) - by_recurrence
    assert bool((spoiled.flatten(1).norm(dim=1) > allowed).any())


@pytest.mark.parametrize(("where", "side", "norm_bound"), [("table", 5, 0.02), ("symbols", 1, 6.0)])
def test_the_errors_of_waves_count_in_the_bound(where, side, norm_bound, monkeypatch):
    """Of small turns on many pixels only those of the table matter, of large turns of one pixel those of the symbol."""
    layer = double(SOC2d(8, 8, 3, padding_mode="circular", norm_bound=norm_bound, bias=False))
    x = torch.rand(40, 8, side, side, dtype=torch.float64)
    by_recurrence = torch.cat([float64_program(layer, (8, side, side)).run(image[None]) for image in x])
    monkeypatch.setattr(float64_products, "WAVE_ERROR", 1e-6)
    if where == "table":
        off = 1e-6 * math.sqrt(2) / side
        row, ends, inner = separate_tables((side, side))
        monkeypatch.setattr(float64_products, "separate_tables", lambda size: (row, ends + off, inner))
    else:
        taps = layer.weight.abs().sum((2, 3))
        monkeypatch.setattr(lowered, "symbol", lambda *given: tuple(part + 1e-6 * taps for part in symbol(*given)))
    program = float64_program(layer, (8, side, side))
    apart = ((program.run(x) - by_recurrence).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)).max()
    assert 1e-6 < float(apart) <= program.bounds.error.slope


def test_large_images_of_few_channels_keep_the_recurrence():
    layer = double(SOC2d(2, 2, 3, padding_mode="circular"))
    for side, by_frequencies in ((4, True), (64, False)):
        assert _has_short_frequencies(lower(layer, (2, side, side))) is by_frequencies


def test_linear_layers_and_normalisation_err_by_less_than_their_bounds():
    x = torch.rand(1, 12, dtype=torch.float64)
    for layer in map(double, (nn.Linear(12, 7), OrthogonalLinear(12, 7), NormalizedLinear(12, 7))):
        assert_error_below_bound(layer, x, exactly(layer.weight) * column(x[0]) + column(layer.bias))
    layer = double(Normalize((0.1, 0.7), (0.3, 1.7)))
    x = torch.rand(1, 2, 3, 3, dtype=torch.float64)
    exact = mpmath.matrix(18, 1)
    for i, value in enumerate(x.flatten().tolist()):
        mean, std = float(layer.mean[i // 9]), float(layer.std[i // 9])
        exact[i] = (mpmath.mpf(value) - mpmath.mpf(mean)) / mpmath.mpf(std)
    assert_error_below_bound(layer, x, exact)


@pytest.mark.parametrize(("layer", "shape"), [(nn.AvgPool1d(1000), (1000,)), (nn.AvgPool2d((1000, 1)), (1000, 1))])
def test_the_mean_of_many_values_errs_by_less_than_its_bound_also_without_channels(layer, shape):
    program = float64_program(layer, shape)
    x = torch.full((1, *shape), 0.1, dtype=torch.float64)
    for value in (x, x + 2.0**-45, x + torch.rand(shape, dtype=torch.float64)):
        exact = mpmath.fsum(map(mpmath.mpf, value.flatten().tolist())) / 1000
        assert abs(float(mpmath.mpf(float(program.run(value))) - exact)) <= program.bounds.error.at(float(value.norm()))
    # As many additions as there are values.
    assert program.bounds.error.slope >= 1000 * 2.0**-53 / 1000**0.5


def test_the_folds_of_a_householder_layer_are_those_that_it_runs():
    layer = double(Householder(2))
    once = float64_program(layer, (2,)).bounds.error.slope
    layer.theta = nn.Parameter(torch.rand(50, 1, dtype=torch.float64), requires_grad=False)
    assert float64_program(layer, (2,)).bounds.error.slope >= 50 * once


def test_plain_convolutions_and_batch_norm_err_by_less_than_their_bounds():
    x = torch.rand(1, 2, 3, 3, dtype=torch.float64)
    layer = double(nn.Conv2d(2, 3, 3, padding=1))
    exact = exactly(dense_jacobian(layer.weight, 3)) * column(x[0])
    exact += column(layer.bias[:, None].expand(3, 9))
    assert_error_below_bound(layer, x, exact)
    layer = nn.BatchNorm2d(2)
    layer(torch.randn(8, 2, 3, 3) * 3 + 5)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    layer = double(layer)
    exact = mpmath.matrix(18, 1)
    for i, value in enumerate(x.flatten().tolist()):
        mean, var, g, b = (
            mpmath.mpf(float(t[i // 9])) for t in (layer.running_mean, layer.running_var, layer.weight, layer.bias)
        )
        exact[i] = (mpmath.mpf(value) - mean) / mpmath.sqrt(var + mpmath.mpf(layer.eps)) * g + b
    assert_error_below_bound(layer, x, exact, 1e-12)


def test_bcop_cayley_and_householder_err_by_less_than_their_bounds():
    x = torch.rand(1, 2, 3, 4, dtype=torch.float64)
    layer = double(BCOP2d(2, 2, 3, bias=False))
    assert_error_below_bound(layer, x, exactly(dense_jacobian(layer.weight, (3, 4), "circular")) * column(x[0]))
    layer = double(Cayley2d(2, 2, 3, bias=False))
    assert_error_below_bound(layer, x, spectral_exactly(lower(layer, (2, 3, 4)), x[0]), 1e-12)
    layer = double(Householder(2, order=2))
    layer.theta.copy_(torch.randn_like(layer.theta))
    exact = mpmath.matrix(24, 1)
    for i in range(12):
        a, b = (mpmath.mpf(float(x[0, c].flatten()[i])) for c in range(2))
        for theta in layer.theta[:, 0].tolist():
            s, c = mpmath.sin(mpmath.mpf(theta) / 2), mpmath.cos(mpmath.mpf(theta) / 2)
            t = 2 * min(mpmath.mpf(0), a * s - b * c)
            a, b = a - t * s, b + t * c
        exact[i], exact[12 + i] = a, b
    assert_error_below_bound(layer, x, exact)


def test_the_transforms_of_a_spectral_layer_count_in_its_error() -> None:
    """One channel and many pixels: nearly all rounding is that of the two tables."""
    layer = double(Cayley2d(1, 1, 3, bias=False))
    x = torch.ones(1, 1, 12, 12, dtype=torch.float64) + torch.rand(1, 1, 12, 12, dtype=torch.float64)
    lowered, program = lower(layer, (1, 12, 12)), float64_program(layer, (1, 12, 12))
    limit = program.bounds.error.at(float(x.norm()))
    assert error_of(program.run(x)[0], spectral_exactly(lowered, x[0])) <= limit < 1e-10
    # The least that a proof can claim: n roundings of each of the four sums of n terms, along rows and along columns.
    row, _, inner = lowered.tables
    shares = [len(table) * float(torch.linalg.matrix_norm(table.abs(), 2)) for table in (row, inner)]
    assert limit >= 2 * sum(shares) * 2**-53 * float(x.norm())


def spectral_exactly(layer: Spectral, x: Tensor) -> mpmath.matrix:
    """Tables, matrices and transposed tables as they are stored."""
    waves = transform_exactly(layer) * exactly(x.flatten(1).T)
    channels, outputs, alone = x.shape[0], layer.weight.shape[2] // 2, len(layer.real_weight)
    moved = mpmath.matrix(waves.rows, outputs)
    blocks = [(f, 1, block) for f, block in enumerate(layer.real_weight)]
    blocks += [(alone + 2 * f, 2, block) for f, block in enumerate(layer.weight)]
    for first, parts, block in blocks:
        row = mpmath.matrix([[waves[first + part, c] for part in range(parts) for c in range(channels)]])
        made = row * exactly(block)
        for part in range(parts):
            for o in range(outputs):
                moved[first + part, o] = made[part * outputs + o]
    image = transform_exactly(layer).T * moved
    return mpmath.matrix([image[p, o] for o in range(outputs) for p in range(image.rows)])


def transform_exactly(layer: Spectral) -> mpmath.matrix:
    """The product of the two steps, of which the first may be none, for sides that are even: (frequencies, pixels)."""
    rows, ends = exactly(layer.row_table), exactly(layer.end_table)
    width, height = rows.rows, ends.rows
    if width == 1:
        return ends
    inner = exactly(layer.inner_table)
    found = []
    for end in range(2):
        found += [[ends[f, p] * rows[end, q] for p in range(height) for q in range(width)] for f in range(height)]
    real, pairs = found[:2] + found[height : height + 2], found[2:height] + found[height + 2 :]
    for column in range(2, width, 2):
        real_part, imaginary = rows[column, :], rows[column + 1, :]
        pairs[(column - 2) * height : (column - 2) * height] = [
            [
                inner[f, p] * real_part[q] + inner[f, height + p] * imaginary[q]
                for p in range(height)
                for q in range(width)
            ]
            for f in range(2 * height)
        ]
    return mpmath.matrix(real + pairs)


def test_the_error_of_a_whole_network_stays_below_its_bound():
    model = nn.Sequential(
        Normalize(0.3, 0.2), SOC2d(2, 2, 3, bias=False), MaxMin(), SOC2d(2, 2, 3, bias=False), nn.Flatten(),
        OrthogonalLinear(18, 3),
    )  # fmt: skip
    certifier = Certifier(model, (2, 3, 3))
    exact = double(model)
    x = torch.rand(1, 2, 3, 3, dtype=torch.float64)
    state = (column(x[0]) - mpmath.mpf(float(exact[0].mean)) * mpmath.ones(18, 1)) / mpmath.mpf(float(exact[0].std))
    state = soc_exactly(exact[1], state, (3, 3))
    high = [max(state[i], state[i + 9]) for i in range(9)] + [min(state[i], state[i + 9]) for i in range(9)]
    state = soc_exactly(exact[3], mpmath.matrix(high), (3, 3))
    logits = exactly(exact[5].weight) * state + column(exact[5].bias)
    error = error_of(certifier.logits(x)[0], logits)
    assert 0 < error <= certifier.rounding.at(float(x.norm())) < 1e-11


def test_what_is_subtracted_shrinks_a_radius_and_a_margin_below_it_certifies_nothing():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0]]))
        model[1].bias.zero_()
    certifier = Certifier(model, (1, 2, 2))
    base = torch.full((1, 1, 2, 2), 0.5, dtype=torch.float64)
    wide, narrow = base.clone(), base.clone()
    wide[0, 0, 0, 0] += 1e-3
    narrow[0, 0, 0, 0] = math.nextafter(0.5, 1.0)  # right by a margin smaller than any rounding error
    label = torch.tensor([0])
    true = (float(wide[0, 0, 0, 0]) - 0.5) / math.sqrt(2)
    assert 0.999999 * true < float(certifier(wide, label).radii) < true
    assert float(certifier(narrow, label).margins) > 0
    assert float(certifier(narrow, label).radii) == 0.0
