"""The command line: words to commands."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from skewconv._version import __version__
from skewconv.errors import SkewconvError

#: word -> module:class; one line makes a new command
COMMANDS: Mapping[str, str] = {
    "train": "skewconv.commands.train:Train",
    "evaluate": "skewconv.commands.evaluate:Evaluate",
    "certify": "skewconv.commands.certify:Certify",
    "audit": "skewconv.commands.audit:Audit",
    "attack": "skewconv.commands.attack:Attack",
    "bench": "skewconv.commands.bench:Bench",
    "data": "skewconv.commands.data:Data",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the status for the shell. Errors a user can mend are one line on stderr and status 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"skewconv {__version__}")
        return 0
    try:
        return int(_parse(words[0], words[1:]).run())
    except SkewconvError as error:
        print(f"skewconv: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read our output has gone; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("skewconv: interrupted", file=sys.stderr)
        return 130


def _command(word: str) -> Any:
    if word not in COMMANDS:
        raise SkewconvError(f"no command is called {word!r}: there are {', '.join(COMMANDS)}; try skewconv --help")
    module, _, name = COMMANDS[word].partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("skewconv"):
            raise
        raise SkewconvError(f"{error.name} is needed here and is missing: pip install 'skewconv[train]'") from error


def _parse(word: str, words: Sequence[str]) -> Any:
    command = _command(word)
    import tyro

    options = {"default": command.defaults(words)} if hasattr(command, "defaults") else {}
    return tyro.cli(command, args=words, prog=f"skewconv {word}", **options)


def _overview() -> str:
    lines = ["usage: skewconv COMMAND ...", ""]
    for word in COMMANDS:
        summary = (_command(word).__doc__ or "").strip().splitlines()[0]
        lines.append(f"  {word:<10} {summary}")
    return "\n".join([*lines, "", "skewconv COMMAND --help lists its flags; with no flags, skewconv train just works."])


if __name__ == "__main__":
    sys.exit(main())
