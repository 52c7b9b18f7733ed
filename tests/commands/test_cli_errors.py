"""Words about the command line: an argument given as a flag, and how to call the program again."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from skewconv.cli import COMMANDS, _command, _positional, main
from skewconv.commands import program

POSITIONAL = [(word, name) for word in COMMANDS for name in _positional(_command(word))]


def test_every_command_but_training_has_one() -> None:
    assert {word for word, _ in POSITIONAL} == {*COMMANDS} - {"train"}


@pytest.mark.parametrize(("word", "name"), POSITIONAL)
def test_an_argument_that_is_given_as_a_flag_is_refused_with_the_usage(
    word: str, name: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (f"--{name}", f"--{name}s", f"--{name}=x"):
        assert main([word, given, "x"]) == 2
        usage = " ".join([f"skewconv {word}", *_positional(_command(word)).values()])
        reason = f"it is given without a flag, as in {usage}; skewconv {word} --help lists all flags"
        assert capsys.readouterr().err == f"skewconv: {given} is not understood: {reason}\n"


@pytest.mark.parametrize(
    ("called", "on_the_path", "said"),
    [
        (".venv/bin/skewconv", None, ".venv/bin/skewconv"),
        ("/opt/my tools/skewconv", None, "'/opt/my tools/skewconv'"),
        ("/usr/local/bin/skewconv", "/usr/local/bin/skewconv", "skewconv"),
        (".venv/bin/skewconv", "/usr/local/bin/skewconv", ".venv/bin/skewconv"),
        ("/usr/bin/pytest", None, "skewconv"),
        ("/somewhere/skewconv/__main__.py", None, f"{shlex.quote(sys.executable)} -m skewconv"),
    ],
)
def test_the_program_is_named_so_that_the_shell_finds_it(monkeypatch, called, on_the_path, said):
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr("shutil.which", lambda name: on_the_path)
    assert program() == said
