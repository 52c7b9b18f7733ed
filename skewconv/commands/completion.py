"""Completion in the shell: a script that knows every command, every flag and their choices."""

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

from skewconv.errors import ArgumentError

SHELLS = ("bash", "zsh", "fish", "tcsh")


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
    return script.getvalue()
