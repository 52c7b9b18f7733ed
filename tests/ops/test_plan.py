"""Plans: pure, cached, readable, and right about what an engine can serve and how much work it is."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from skewconv.errors import ArgumentError, ShapeError
from skewconv.ops import conv_exp, skew_filter
from skewconv.ops.convolution import Geometry
from skewconv.ops.convolution_exponential import apply_polynomial
from skewconv.ops.engines import AUTO, ENGINES, EVERY_REQUEST, Engine
from skewconv.ops.engines.channels import ChannelWidths
from skewconv.ops.engines.costs import Request, seconds
from skewconv.ops.plan import EnginePlan, plan
from skewconv.ops.polynomials import polynomial


def candidate(chosen: EnginePlan, engine: str) -> Any:
    return next(c for c in chosen.candidates if c.engine == engine)


def test_a_plan_is_a_pure_cached_frozen_value() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = plan((16, 8, 4, 4), (8, 8, 3, 3), degree=3)
    assert plan([16, 8, 4, 4], torch.Size((8, 8, 3, 3)), degree=3) is first
    with torch.no_grad(), torch.autocast("cpu"):
        assert plan((16, 8, 4, 4), (8, 8, 3, 3), degree=3) is first
    assert torch.equal(before, torch.random.get_rng_state())  # moved
    assert hash(first) == hash(dataclasses.replace(first))
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.engine = "series"  # type: ignore[misc]


def test_a_plan_reads_well() -> None:
    text = str(plan((128, 1024, 2, 2), (1024, 1024, 3, 3), degree=3, out_channels=512))
    first, series, winograd, dense, spectral = text.splitlines()
    assert first.startswith("engine dense (contiguous): estimated ")
    assert "times as fast as series, with 0.44 times its multiply-adds" in first
    assert "columns" in series
    assert "12,079,595,520 multiply-adds forward,  36,238,786,560 with backward" in series
    assert "blocks" in dense
    assert "5,368,709,120 multiply-adds forward,  16,106,127,360 with backward" in dense
    assert winograd.endswith("not taken: its rounding would show beside a truncation error below 1e-05")
    assert spectral.endswith("not taken: the spectral engine needs padding_mode='circular', got 'zeros'")


def test_multiply_adds_are_those_of_the_products() -> None:
    # 2 images of 3x3 pixels, 3 channels read, 5 kept of 6, three steps: 6 * 3, 6 * 6 and 5 * 6 products a tap.
    cut = 6 * 3 + 6 * 6 + 5 * 6
    zeros = plan((2, 3, 3, 3), (6, 6, 3, 3), degree=3, out_channels=5)
    assert candidate(zeros, "series").forward == 2 * 9 * 9 * cut
    assert candidate(zeros, "dense").forward == 2 * 9**2 * cut
    # Two groups, images of 64x64: blocks of pixels inside the image, 7 + 8 + 7 of them an axis of 8.
    wide = plan((2, 512, 8, 8), (512, 256, 3, 3), degree=2, groups=2)
    assert candidate(wide, "dense").forward == 2 * 22**2 * 2 * 2 * 256**2
    # Circular: 3 * 2 frequencies, four real products each, and the two transforms.
    circular = plan((2, 3, 3, 3), (6, 6, 3, 3), degree=3, out_channels=5, padding_mode="circular")
    assert candidate(circular, "spectral").forward == 4 * 6 * 2 * cut + 2 * 6 * 9 * 2 * (3 + 5)
    for c in (*zeros.candidates, *circular.candidates):
        assert c.training == 3 * c.forward


def test_taps_out_of_reach_are_not_counted() -> None:
    chosen = plan((4, 32, 1, 1), (32, 32, 3, 3), degree=2)
    assert candidate(chosen, "series").forward == candidate(chosen, "dense").forward == 4 * 2 * 32**2


def test_a_complex_channel_counts_as_two_real_ones() -> None:
    real = plan((4, 8, 6, 6), (8, 8, 3, 3), degree=2)
    twice = plan((4, 4, 6, 6), (4, 4, 3, 3), degree=2, dtype=torch.complex64)
    assert real.candidates == twice.candidates


@pytest.mark.parametrize(
    ("image", "kernel", "options", "engine"),
    [
        ((128, 12, 16, 16), 3, {"m": 64}, "series"),
        ((128, 512, 4, 4), 3, {"out_channels": 256}, "dense"),
        ((128, 1024, 2, 2), 3, {"out_channels": 512}, "dense"),
        ((128, 2048, 1, 1), 1, {"out_channels": 1024}, "dense"),
        ((128, 8, 2, 2), 3, {}, "dense"),
        ((128, 64, 16, 16), 3, {"padding_mode": "circular"}, "spectral"),
        ((128, 64, 16, 16), 3, {"padding_mode": "circular", "needs_grad": False}, "spectral"),
        ((1, 64, 64, 64), 3, {"padding_mode": "circular", "needs_grad": False}, "series"),
        ((1, 64, 32, 32), 3, {"needs_grad": False}, "series"),
    ],
)
def test_plans_known_by_measurement(image: tuple[int, ...], kernel: int, options: dict, engine: str) -> None:
    m = options.pop("m", image[1]) if "m" in options else image[1]
    assert plan(image, (m, m, kernel, kernel), degree=3, **options).engine == engine


def test_the_rates_choose_a_fast_engine_for_every_shape_on_record() -> None:
    record = Path(__file__).parents[2] / "benchmarks" / "records" / "plan.json"
    rows = json.loads(record.read_text())["results"]["rows"]
    assert len({row["channels"] for row in rows}) == 8
    for row in rows:
        m, n = row["channels"], row["side"]
        options = {"degree": row["degree"], "padding_mode": row["padding_mode"], "needs_grad": row["training"]}
        engine = plan((row["batch"], m, n, n), (m, m, 3, 3), **options).engine
        forced = {name: seconds for name, seconds in row["seconds"].items() if name != "auto"}
        assert forced[engine] <= 1.15 * min(forced.values()), row


def test_devices_and_half_precision_get_convolutions() -> None:
    shapes = (128, 1024, 2, 2), (1024, 1024, 3, 3)
    elsewhere, half = plan(*shapes, degree=3, device="cuda"), plan(*shapes, degree=3, dtype=torch.bfloat16)
    assert elsewhere.engine == half.engine == "series"
    assert "'cuda'" in elsewhere.reason
    assert "bfloat16" in half.reason


def test_the_memory_format_is_that_of_the_series_engine() -> None:
    assert plan((8, 64, 32, 32), (64, 64, 3, 3), degree=3).memory_format == "channels_last"
    x, skew = torch.randn(8, 64, 32, 32), 0.01 * skew_filter(torch.randn(64, 64, 3, 3))
    y = apply_polynomial(x, skew, polynomial(2.1, 2, "taylor"), Geometry.of((3, 3), "zeros", 1, 1))
    assert y.is_contiguous(memory_format=torch.channels_last)
    widened = apply_polynomial(x[:, :12], skew, polynomial(2.1, 2, "taylor"), Geometry.of((3, 3), "zeros", 1, 1))
    assert widened.is_contiguous(memory_format=torch.channels_last)
    assert plan((1, 1, 8), (1, 1, 3), degree=3).memory_format == "contiguous"


def test_a_filter_that_outweighs_the_images_is_not_copied() -> None:
    shapes = (2, 1024, 4, 4), (1024, 1024, 3, 3)
    few = plan(*shapes, degree=9, needs_grad=False)
    assert few.engine == "series"
    assert few.memory_format == "contiguous"
    forms = {
        "few": few,
        "many": plan((64, 1024, 4, 4), (1024, 1024, 3, 3), degree=9),
        "narrow": plan((2, 128, 4, 4), (128, 128, 3, 3), degree=9),
        "half": plan(*shapes, degree=9, dtype=torch.bfloat16),
        "elsewhere": plan(*shapes, degree=9, device="cuda"),
    }
    assert {name: candidate(chosen, "series").form for name, chosen in forms.items()} == {
        "few": "columns",
        "many": "convolutions",
        "narrow": "convolutions",
        "half": "convolutions",
        "elsewhere": "convolutions",
    }


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize(
    ("shape", "padding_mode"), [((16, 8, 2, 2), "zeros"), ((8, 16, 32, 32), "zeros"), ((64, 16, 8, 8), "circular")]
)
def test_auto_runs_the_engine_of_the_plan(
    shape: tuple[int, ...], padding_mode: str, needs_grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    for engine in ENGINES.values():

        def spy(*args: Any, _name: str = engine.name, _apply: Any = engine.apply, **kwargs: Any) -> Any:
            ran.append(_name)
            return _apply(*args, **kwargs)

        monkeypatch.setattr(engine, "apply", spy)
    m = shape[1]
    skew = 0.01 * skew_filter(torch.randn(m, m, 3, 3))
    geometry = Geometry.of((3, 3), padding_mode, 1, 1)
    apply_polynomial(
        torch.randn(shape, requires_grad=needs_grad), skew, polynomial(2.1, 3, "chebyshev"), geometry, engine="auto"
    )
    options = {"padding_mode": padding_mode, "needs_grad": needs_grad}
    assert ran == [plan(shape, (m, m, 3, 3), degree=3, **options).engine]
    assert len({plan(s, (s[1], s[1], 3, 3), degree=3).engine for s in ((16, 8, 2, 2), (8, 16, 32, 32))}) == 2


@pytest.mark.parametrize(
    ("engine", "size", "words"),
    [
        ("spectral", (4, 4), "the spectral engine needs padding_mode='circular', got 'zeros'"),
        ("dense", (64, 64), r"an image of size \(64, 64\) has 36100 blocks .* at most 16384"),
        ("fourier", (4, 4), "engine must be one of 'auto', 'series', 'winograd', 'dense', 'spectral', got 'fourier'"),
    ],
)
def test_an_engine_that_cannot_serve_is_refused(engine: Any, size: tuple[int, int], words: str) -> None:
    x, skew = torch.randn(1, 2, *size), 0.1 * skew_filter(torch.randn(2, 2, 3, 3))
    with pytest.raises(ArgumentError, match=words):
        conv_exp(x, skew, norm_bound=3.0, degree=3, engine=engine)
    geometry = Geometry.of((3, 3), "zeros", 1, 1)
    with pytest.raises(ArgumentError, match=words):
        apply_polynomial(x, skew, polynomial(2.1, 3, "taylor"), geometry, engine=engine)


@pytest.mark.parametrize(
    ("image", "filter_shape", "groups"),
    [((1, 2, 4), (2, 2, 3, 3), 1), ((1, 2, 4, 4), (2, 2, 3, 3), 2), ((2, 4), (2, 2), 1)],
)
def test_shapes_that_do_not_fit_are_refused(image: tuple[int, ...], filter_shape: tuple[int, ...], groups: int) -> None:
    with pytest.raises(ShapeError, match="filter_shape") as info:
        plan(image, filter_shape, degree=3, groups=groups)
    assert str(image) in str(info.value)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_every_engine_states_its_cost_its_format_and_what_it_computes_in(engine: Engine) -> None:
    geometry, widths = Geometry.of((3, 3), "circular", 1, 1), ChannelWidths(1, 8, 6, 8)
    for needs_grad in (False, True):
        request = Request(4, (5, 5), geometry, widths, 3, torch.float32, needs_grad, "cpu")
        assert engine.refusal(geometry, request.size) == engine.refusal(geometry, None) == ""
        counts = engine.cost(request)
        assert len(counts.terms()) == len(counts.form.training) == len(counts.form.evaluation)
        assert seconds(request, counts) > 0
        assert engine.memory_format(request) in ("contiguous", "channels_last")
    assert engine.working_dtype(torch.float64, "cpu") == torch.float64
    assert engine.working_dtype(torch.bfloat16, "cpu") in (torch.bfloat16, torch.float32)


def test_names_are_keys_and_one_engine_refuses_nothing() -> None:
    assert {name: engine.name for name, engine in ENGINES.items()} == {name: name for name in ENGINES}
    assert AUTO not in ENGINES
    for padding_mode in ("zeros", "circular"):
        geometry = Geometry.of((3, 3), padding_mode, 1, 1)
        assert [EVERY_REQUEST.refusal(geometry, size) for size in (None, (1, 1), (500, 500))] == ["", "", ""]


def test_the_plan_names_every_engine() -> None:
    assert [c.engine for c in plan((2, 4, 4, 4), (4, 4, 3, 3), degree=3).candidates] == list(ENGINES)
