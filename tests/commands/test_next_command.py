"""The commands that are printed to go on with work as they are printed, however the program was called."""

import shlex
import sys
from pathlib import Path

import pytest

from skewconv.commands import program


@pytest.mark.parametrize(
    ("called", "on_the_path", "said"),
    [
        (".venv/bin/skewconv", None, ".venv/bin/skewconv"),
        ("/opt/my tools/skewconv", None, "'/opt/my tools/skewconv'"),
        ("/usr/local/bin/skewconv", "/usr/local/bin/skewconv", "skewconv"),
        (".venv/bin/skewconv", "/usr/local/bin/skewconv", ".venv/bin/skewconv"),
        ("/usr/bin/pytest", None, "skewconv"),
    ],
)
def test_the_program_is_named_so_that_the_shell_finds_it(monkeypatch, called, on_the_path, said):
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr("shutil.which", lambda name: on_the_path)
    assert program() == said


def test_as_a_module_it_names_its_python(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/skewconv/__main__.py"])
    python, *rest = shlex.split(program())
    assert Path(python).exists()
    assert rest == ["-m", "skewconv"]
