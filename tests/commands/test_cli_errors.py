"""An argument without a flag is explained as one, in every command that has one."""

from pathlib import Path
from typing import Any

import pytest

from skewconv.cli import COMMANDS, _command, _positional, main

POSITIONAL = [(word, name) for word in COMMANDS for name in _positional(_command(word))]


def test_every_command_but_training_has_one() -> None:
    assert {word for word, _ in POSITIONAL} == {*COMMANDS} - {"train"}


@pytest.mark.parametrize(("word", "name"), POSITIONAL)
@pytest.mark.parametrize("form", ["--{}", "--{}s", "--{}=x"])
def test_an_argument_that_is_given_as_a_flag_is_refused_with_the_usage(
    word: str, name: str, form: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = form.format(name)
    assert main([word, given, "x"]) == 2
    usage = " ".join([f"skewconv {word}", *_positional(_command(word)).values()])
    reason = f"it is given without a flag, as in {usage}; skewconv {word} --help lists all flags"
    assert capsys.readouterr().err == f"skewconv: {given} is not understood: {reason}\n"
