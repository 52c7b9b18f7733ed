"""The command line: words to commands, and refusals in one line. Answers that need no computing need no torch."""

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from skewconv._version import __version__
from skewconv.config import near_match
from skewconv.errors import SkewconvError
from skewconv.extras import missing_extra

#: word -> module:class; one line makes a new command
COMMANDS: Mapping[str, str] = {
    "train": "skewconv.commands.train:Train",
    "evaluate": "skewconv.commands.evaluate:Evaluate",
    "certify": "skewconv.commands.certify:Certify",
    "audit": "skewconv.commands.audit:Audit",
    "attack": "skewconv.commands.attack:Attack",
    "predict": "skewconv.commands.predict:Predict",
    "report": "skewconv.commands.report:Report",
    "explore": "skewconv.commands.explore:Explore",
    "serve": "skewconv.commands.serve:Serve",
    "export": "skewconv.commands.export:ExportCommand",
    "reproduce": "skewconv.commands.reproduce:Reproduce",
    "import": "skewconv.commands.import_weights:Import",
    "bench": "skewconv.commands.bench:Bench",
    "data": "skewconv.commands.data:Data",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the status for the shell. Errors a user can mend are one line on stderr and status 2."""
    try:
        status = _answer(list(sys.argv[1:] if argv is None else argv))
        # What is still buffered is written now, where a full disk is an error that can be told.
        sys.stdout.flush()
        return status
    except SystemExit as stop:
        # tyro has printed a help, or what it refuses.
        return int(stop.code or 0)
    except SkewconvError as error:
        print(f"skewconv: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output has gone; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"skewconv: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("skewconv: interrupted", file=sys.stderr)
        return 130


def _answer(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"skewconv {__version__}")
        return 0
    return int(_parse(words[0], words[1:]).run())


def _command(word: str) -> Any:
    if word not in COMMANDS:
        hint = near_match(word, COMMANDS)
        raise SkewconvError(f"no command is called {word!r}: {hint}there are {', '.join(COMMANDS)}")
    module, _, name = COMMANDS[word].partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        package = error.name or ""
        if package.startswith("skewconv"):
            raise
        raise missing_extra(package, "train") from error


def _parse(word: str, words: Sequence[str]) -> Any:
    """The command with its flags; tyro prints what it refuses, and exits."""
    command = _command(word)
    import tyro

    from skewconv.commands import REGISTRY

    options = {"default": command.defaults(words)} if hasattr(command, "defaults") else {}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(command, args=words, prog=f"skewconv {word}", registry=REGISTRY, **options)
    except SystemExit as stop:
        # The errors of a config are whole sentences: they are shown without the frame that tyro puts around them.
        error: BaseException | None = stop
        while error is not None and not isinstance(error, SkewconvError):
            error = error.__context__
        if error is None:
            raise
        said = io.StringIO()
        raise error from None
    finally:
        sys.stderr.write(said.getvalue())


def _overview() -> str:
    commands = [f"  {word:<10} {_command(word).__doc__.partition(chr(10))[0]}" for word in COMMANDS]
    return "\n".join(
        [
            *("usage: skewconv COMMAND ...", "", *commands, ""),
            "skewconv COMMAND --help lists its flags; with no flags, skewconv train just works.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
