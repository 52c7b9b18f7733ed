"""The README's own example runs, and shows what it says."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
def test_the_example_runs(code, capsys):
    exec(compile(code, str(README), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    low, high = map(float, lines[0].strip("()").split(","))
    assert 1 - 1e-6 <= low <= high <= 1
    assert float(lines[1].removeprefix("tensor(").split(",")[0].rstrip(")")) == pytest.approx(1, abs=1e-5)
    assert float(lines[2].removeprefix("tensor(").split(",")[0].rstrip(")")) < 1e-4
    assert float(lines[3]) == pytest.approx(1 / 0.2507, rel=1e-5)
    assert "LipConvnet" in lines[-1]
