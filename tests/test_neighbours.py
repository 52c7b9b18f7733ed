"""The README says of its neighbours what running them showed: the record of benchmarks/neighbours.py."""

import re
from pathlib import Path

import pytest

import skewconv
from skewconv.records import read_record

ROOT = Path(__file__).parents[1]
FOUND = read_record(ROOT / "benchmarks" / "records" / "neighbours.json")["results"]
NO_GPU = "AssertionError: Torch not compiled with CUDA enabled"


def _table() -> tuple[list[str], dict[str, list[str]]]:
    """The heads of the columns, and the cells of each row by its name."""
    text = re.search(r"<!-- neighbours -->\n(.*?)<!-- end -->", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    rows = [[cell.strip() for cell in line.strip("|\n ").split(" | ")] for line in text.splitlines()]
    return rows[0], {name: cells for name, *cells in rows[2:]}


HEADS, ROWS = _table()
ORTHOGONIUM, TORCHLIP = FOUND["orthogonium"], FOUND["deel-torchlip"]


def _cell(row: str, package: str) -> str:
    column = next(index for index, head in enumerate(HEADS[-5:]) if head.startswith(package))
    return ROWS[row][column]


def _gains(facts: dict) -> tuple[float, float]:
    return facts["least_singular_value"], facts["largest_singular_value"]


def test_versions_are_those_that_were_run():
    assert HEADS[-2:] == [f"{name} {FOUND[name]['version']}" for name in ("orthogonium", "deel-torchlip")]
    assert all(len(cells) == 5 for cells in ROWS.values())


def test_layers_stretch_and_shrink_as_said():
    layers = ORTHOGONIUM["layers"]
    assert _cell("orthogonal convolutions", "orthogonium") == "AOC; a variant of SOC, to about 1%"
    assert _gains(layers["AdaptiveOrthoConv2d"]) == pytest.approx((1, 1), abs=1e-5)
    low, high = _gains(layers["AdaptiveSOCConv2d"])
    assert 0.985 < low < 0.995 < 1.005 < high < 1.015
    assert _cell("orthogonal convolutions", "deel-torchlip").startswith("none: kernels that are orthogonal as matrices")
    assert _gains(TORCHLIP["layers"]["SpectralConv2d"])[0] < 0.01
    assert _cell("other non-expansive layers", "orthogonium") == "AOL, SLL, RKO"
    for name in ("AOLConv2D", "SDPBasedLipschitzResBlock", "RKOConv2d"):
        assert _gains(layers[name])[1] < 1 + 1e-5
    for name in re.findall(r"`(\w+)`", _cell("other non-expansive layers", "deel-torchlip")):
        assert _gains(TORCHLIP["layers"][name])[1] < 1


def test_borders_do_what_is_said():
    paddings = ORTHOGONIUM["paddings"]
    assert _gains(paddings["circular"]) == pytest.approx((1, 1), abs=1e-5)
    assert _gains(paddings["zeros"])[0] < 0.5
    stretches = re.search(r"reflect and replicate stretch \((.*?)\)", _cell("border", "orthogonium"))[1]
    for mode in ("reflect", "replicate"):
        assert f"{_gains(paddings[mode])[1]:.2f}" == stretches
    assert "ValueError" in paddings["symmetric"]
    assert _cell("border", "deel-torchlip") == "as `nn.Conv2d`, symmetric"
    assert all(isinstance(facts, dict) for facts in TORCHLIP["paddings"].values())


def test_dimensions_transposes_and_inverses_exist_or_not():
    assert not any(ORTHOGONIUM["other_dimensions"].values())
    assert TORCHLIP["other_dimensions"] == {"SpectralConv1d": True, "SpectralConv3d": False}
    transposed = {"orthogonium": "AdaptiveOrthoConvTranspose2d", "deel-torchlip": "SpectralConvTranspose2d"}
    for package, name in transposed.items():
        facts = FOUND[package]
        assert _cell("transposed; exact inverse", package) == "yes; no"
        assert facts["layers"][name]["runs"]
        assert not any(layer["inverse"] for layer in facts["layers"].values())
        assert facts["complex_input"].startswith("RuntimeError")
        assert "complex" not in _cell("dimensions, complex signals", package)


def test_bounds_radii_inference_and_commands_are_as_said():
    assert ORTHOGONIUM["lipschitz_constant"]["dtype"] == "torch.float32"
    assert _cell("a layer's Lipschitz bound", "orthogonium") == "Gram iteration in float32"
    says = TORCHLIP["lipschitz_constant"]
    assert says["says"]["noise_norm"] < 0.9 * says["true"]
    assert _cell("a layer's Lipschitz bound", "deel-torchlip") == "measured on samples"
    assert ORTHOGONIUM["radii"] == NO_GPU
    assert _cell("without a GPU", "orthogonium") == "layers yes, radii no"
    assert (_cell("radii", "deel-torchlip"), TORCHLIP["radii"]) == ("none", [])
    assert ORTHOGONIUM["plain_layer_for_inference"]["kind"] == "nn.Conv2d"
    assert TORCHLIP["plain_layer_for_inference"] == {"kind": "nn.Conv2d", "difference": 0.0}
    assert ORTHOGONIUM["commands"] == TORCHLIP["commands"] == []


def test_our_own_cells_name_what_is_here():
    ours = {row: cells[0] for row, cells in ROWS.items()}
    for name in ours["orthogonal convolutions"].split(", "):
        assert name + "2d" in skewconv.nn.__all__
    for name in ours["other non-expansive layers"].split(", ")[:3]:
        assert name + "2d" in skewconv.nn.__all__
    assert {f"SOC{n}d" for n in (1, 2, 3)} | {f"SUC{n}d" for n in (1, 2, 3)} <= set(skewconv.nn.__all__)
