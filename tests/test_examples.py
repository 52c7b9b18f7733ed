"""The example of the mathematics prints errors that stay under the proven ones."""

import runpy
from pathlib import Path


def test_the_core_example_shows_measured_below_proven(capsys):
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / "core.py"), run_name="__main__")
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:6].strip().isdigit()]
    assert [int(row[0]) for row in rows] == list(range(1, 13))
    for row in rows:
        taylor, taylor_bound, chebyshev, chebyshev_bound = map(float, row[1:5])
        assert taylor <= taylor_bound
        assert chebyshev <= chebyshev_bound
