"""The shell completes commands and flags by the script that --completion prints."""

import shutil
import subprocess

import pytest

from skewconv import cli

BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
def test_bash_completes_commands_and_flags(tmp_path, capsys):
    assert cli.main(["--completion", "bash"]) == 0
    script = tmp_path / "skewconv.bash"
    script.write_text(capsys.readouterr().out)
    ask = (
        'source "$1"; COMP_WORDS=(skewconv tr); COMP_CWORD=1; _tyro_skewconv; echo "${COMPREPLY[@]}"\n'
        'COMP_WORDS=(skewconv train --pad); COMP_CWORD=2; _tyro_skewconv; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run([BASH, "-c", ask, "bash", script], capture_output=True, text=True, check=True)
    command, flags = done.stdout.splitlines()
    assert command.split() == ["train"]
    assert set(flags.split()) >= {"--padding-mode", "--padding"}


@pytest.mark.parametrize("words", [[], ["powershell"], ["bash", "zsh"]])
def test_another_shell_is_refused_by_name(words, capsys):
    assert cli.main(["--completion", *words]) == 2
    assert "one of bash, zsh, fish, tcsh" in capsys.readouterr().err
