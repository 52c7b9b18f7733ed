"""The README's own examples and that of the mathematics run, and show what they say."""

import re
import runpy
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
FIRST, SECOND, THIRD = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(code: str) -> dict:
    """The names that the code leaves."""
    names: dict = {}
    exec(compile(code, str(README), "exec"), names)
    return names


def test_the_ten_lines_end_in_a_class_and_its_radius(capsys):
    names = run(FIRST)
    found, labels = names["found"], names["labels"][1500:]
    assert (found.classes == labels).double().mean() > 0.75
    assert found.radii.median() > 0.05
    said = re.findall(r"class (\d), which no change shorter than (\d\.\d+) can alter\n", capsys.readouterr().out)
    assert [int(digit) for digit, _ in said] == found.classes[:3].tolist()
    assert [float(radius) for _, radius in said] == pytest.approx(found.radii[:3].tolist(), rel=1e-12)


def test_a_layer_is_an_isometry_with_an_inverse(capsys):
    run(SECOND)
    lines = capsys.readouterr().out.splitlines()
    low, high = map(float, lines[0].strip("()").split(","))
    assert 1 - 1e-6 <= low <= high <= 1
    assert float(lines[1].removeprefix("tensor(").split(",")[0].rstrip(")")) == pytest.approx(1, abs=1e-5)
    assert float(lines[2].removeprefix("tensor(").split(",")[0].rstrip(")")) < 1e-4


def test_the_network_of_the_package_gives_a_class_and_its_radius():
    found = run(THIRD)["found"]
    assert found.classes.shape == found.radii.shape == (1,)
    assert float(found.radii) >= 0


def test_the_core_example_shows_measured_below_proven(capsys):
    runpy.run_path(str(README.parent / "examples" / "core.py"), run_name="__main__")
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:6].strip().isdigit()]
    assert [int(row[0]) for row in rows] == list(range(1, 13))
    for row in rows:
        taylor, taylor_bound, chebyshev, chebyshev_bound = map(float, row[1:5])
        assert taylor <= taylor_bound
        assert chebyshev <= chebyshev_bound
