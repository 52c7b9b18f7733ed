"""Plans: pure, readable, and as good as the fastest engine on record."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from skewconv.errors import ArgumentError, ShapeError
from skewconv.ops import conv_exp, skew_filter
from skewconv.ops.convolution import Geometry
from skewconv.ops.convolution_exponential import AUTO, ENGINES, apply_polynomial, plan
from skewconv.ops.engines.series_engine import memory_format
from skewconv.ops.polynomials import polynomial


def test_a_plan_says_which_engine_and_why() -> None:
    first = plan((128, 1024, 2, 2), (1024, 1024, 3, 3), degree=3, out_channels=512)
    assert str(first) == "engine dense: 44% of the products of taps with pixels lie inside the image"
    assert plan([128, 1024, 2, 2], torch.Size((1024, 1024, 3, 3)), degree=3) == first
    # A complex channel counts as two real ones, and taps out of reach not at all.
    assert (
        plan((4, 160, 1, 1), (160, 160, 9, 9), degree=3, dtype=torch.complex64).reason == "J is one matrix of 320 rows"
    )


@pytest.mark.parametrize(
    ("image", "kernel", "options", "engine"),
    [
        ((128, 12, 16, 16), 3, {"m": 64}, "series"),
        ((128, 512, 4, 4), 3, {"out_channels": 256}, "dense"),
        ((128, 2048, 1, 1), 1, {"out_channels": 1024}, "dense"),
        ((128, 8, 2, 2), 3, {}, "dense"),
        ((128, 64, 16, 16), 3, {"padding_mode": "circular"}, "spectral"),
        ((128, 64, 16, 16), 1, {"padding_mode": "circular"}, "series"),
        ((1, 64, 64, 64), 3, {"padding_mode": "circular"}, "series"),
        ((1, 64, 64, 64), 9, {}, "series"),
        ((128, 1024, 2, 2), 3, {"device": "cuda"}, "series"),
        ((128, 1024, 2, 2), 3, {"dtype": torch.bfloat16}, "dense"),
        ((128, 1024, 2, 2), 3, {"dtype": torch.bfloat16, "padding_mode": "circular"}, "spectral"),
        ((128, 2048, 1, 1), 1, {"dtype": torch.bfloat16, "padding_mode": "circular"}, "dense"),
        ((128, 512, 4, 4), 3, {"dtype": torch.bfloat16}, "series"),
        ((128, 1024, 2, 2), 3, {"dtype": torch.float16}, "series"),
        ((128, 64, 16, 16), 3, {"dtype": torch.bfloat16, "padding_mode": "circular"}, "spectral"),
        ((128, 64, 16, 16), 3, {"truncation_error": 1e-2}, "winograd"),
        ((128, 64, 16, 16), 3, {"truncation_error": 1e-7}, "series"),
        ((128, 32, 16, 16), 3, {"truncation_error": 1e-2}, "series"),
        # Where convolutions are faster than products, Winograd's pay in wider layers only.
        ((128, 128, 16, 16), 3, {"truncation_error": 1e-2, "onednn": True}, "series"),
        ((128, 256, 16, 16), 3, {"truncation_error": 1e-2, "onednn": True}, "winograd"),
    ],
)
def test_plans_known_by_measurement(image: tuple[int, ...], kernel: int, options: dict, engine: str) -> None:
    m = options.get("m", image[1])
    others = {"onednn": False, **{name: value for name, value in options.items() if name != "m"}}
    assert plan(image, (m, m, kernel, kernel), degree=3, **others).engine == engine


@pytest.mark.parametrize("name", ["plan", "plan-random"])
def test_the_rules_choose_a_fast_engine_for_the_shapes_on_record(name: str) -> None:
    record = Path(__file__).parents[2] / "benchmarks" / "records" / f"{name}.json"
    ratios = []
    results = json.loads(record.read_text())["results"]
    for row in results["rows"]:
        m, n, error = row["channels"], row["side"], polynomial(2.1, row["degree"], "chebyshev").truncation_error
        options = {"degree": row["degree"], "padding_mode": row["padding_mode"], "truncation_error": error}
        options["onednn"] = results.get("onednn", False)
        forced = {engine: seconds for engine, seconds in row["seconds"].items() if engine != AUTO}
        engine = plan((row["batch"], m, n, n), (m, m, 3, 3), **options).engine
        if engine in forced:
            ratios.append(forced[engine] / min(forced.values()))
    assert len(ratios) >= 280
    assert max(ratios) <= 2
    assert sum(ratio <= 1.15 for ratio in ratios) >= 0.96 * len(ratios)


def test_the_memory_format_is_that_of_the_fastest_convolutions() -> None:
    x, skew = torch.randn(8, 64, 32, 32), 0.01 * skew_filter(torch.randn(64, 64, 3, 3))
    geometry = Geometry.of((3, 3), "zeros", 1, 1)
    for images in (x, x[:, :12]):
        y = apply_polynomial(images, skew, polynomial(2.1, 2, "taylor"), geometry)
        assert y.is_contiguous(memory_format=torch.channels_last)
    assert memory_format(64, (32, 32), "circular") == memory_format(1, (8,), "zeros") == torch.contiguous_format


@pytest.mark.parametrize(
    ("shape", "padding_mode", "engine"),
    [((16, 8, 2, 2), "zeros", "dense"), ((8, 16, 32, 32), "zeros", "series"), ((64, 16, 8, 8), "circular", "spectral")],
)
def test_auto_runs_the_engine_of_the_plan(
    shape: tuple[int, ...], padding_mode: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    for each in ENGINES.values():

        def spy(*args: Any, _name: str = each.name, _arrange: Any = each.arrange) -> Any:
            ran.append(_name)
            return _arrange(*args)

        monkeypatch.setattr(each, "arrange", spy)
    m = shape[1]
    skew, geometry = 0.01 * skew_filter(torch.randn(m, m, 3, 3)), Geometry.of((3, 3), padding_mode, 1, 1)
    apply_polynomial(torch.randn(shape), skew, polynomial(2.1, 3, "chebyshev"), geometry)
    assert ran == [engine] == [plan(shape, (m, m, 3, 3), degree=3, padding_mode=padding_mode).engine]


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


@pytest.mark.parametrize(
    ("image", "filter_shape", "groups"),
    [((1, 2, 4), (2, 2, 3, 3), 1), ((1, 2, 4, 4), (2, 2, 3, 3), 2), ((2, 4), (2, 2), 1)],
)
def test_shapes_that_do_not_fit_are_refused(image: tuple[int, ...], filter_shape: tuple[int, ...], groups: int) -> None:
    with pytest.raises(ShapeError, match="filter_shape") as info:
        plan(image, filter_shape, degree=3, groups=groups)
    assert str(image) in str(info.value)
