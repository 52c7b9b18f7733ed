"""Completion in the shell: a script that knows every command, every flag and their choices."""

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

from skewconv.errors import ArgumentError

SHELLS = ("bash", "zsh", "fish")

#: The script of tyro proposes nothing where a run or a picture is named without a flag: files, then.
_BASH_FILES = """
_skewconv() {
  _tyro_skewconv "$@"
  if [[ -z "${COMPREPLY[*]}" ]]; then
    compopt -o filenames 2> /dev/null
    local IFS=$'\\n'
    COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
  fi
}
complete -F _skewconv skewconv
"""


def completion_script(commands: Mapping[str, Any], words: Sequence[str]) -> str:
    """The script for the shell that the words name.

    Args:
        commands: word -> class of a command.
        words: what came after --completion: one of SHELLS.
    """
    import tyro

    from skewconv.commands.vocabulary import REGISTRY

    if len(words) != 1 or words[0] not in SHELLS:
        came = " ".join(words) or "nothing"
        raise ArgumentError(f"--completion takes the name of a shell, one of {', '.join(SHELLS)}, and {came} was given")
    script = io.StringIO()
    # tyro prints the script and leaves the program.
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(script):
        tyro.extras.subcommand_cli_from_dict(
            dict(commands), prog="skewconv", args=["--tyro-write-completion", words[0], "-"], registry=REGISTRY
        )
    return script.getvalue() + (_BASH_FILES if words[0] == "bash" else "")
