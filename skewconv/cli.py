"""The command line: words to commands. Answers that need no computing need no torch."""

import ast
import contextlib
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from skewconv._version import __version__
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
    except SkewconvError as error:
        print(f"skewconv: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read our output has gone; what is still buffered must not raise again at exit.
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
    if words[0] == "--completion":
        from skewconv.commands.completion import completion_script

        print(completion_script({word: _command(word) for word in COMMANDS}, words[1:]))
        return 0
    return int(_parse(words[0], words[1:]).run())


def _place(word: str) -> tuple[str, str]:
    if word not in COMMANDS:
        raise SkewconvError(f"no command is called {word!r}: there are {', '.join(COMMANDS)}; try skewconv --help")
    module, _, name = COMMANDS[word].partition(":")
    return module, name


def _command(word: str) -> Any:
    module, name = _place(word)
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        package = error.name or ""
        if package.startswith("skewconv"):
            raise
        raise missing_extra(package, "train") from error


def _parse(word: str, words: Sequence[str]) -> Any:
    command = _command(word)
    import tyro

    from skewconv.commands.refusals import refusal, refused_word
    from skewconv.commands.vocabulary import REGISTRY

    program = f"skewconv {word}"
    options = {"default": command.defaults(words)} if hasattr(command, "defaults") else {}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed, unknown = tyro.cli(
                command, args=words, prog=program, return_unknown_args=True, registry=REGISTRY, **options
            )
    except SystemExit as stop:
        if stop.code in (None, 0):
            raise
        raise refusal(stop, said.getvalue(), command, words, program) from None
    sys.stderr.write(said.getvalue())
    if unknown:
        raise refused_word(unknown[0], command, program)
    return parsed


def _overview() -> str:
    lines = ["usage: skewconv COMMAND ...", ""]
    lines += [f"  {word:<10} {_summary(word)}" for word in COMMANDS]
    lines += ["", "skewconv COMMAND --help lists its flags; with no flags, skewconv train just works."]
    return "\n".join(
        [*lines, "skewconv --completion bash (zsh, fish) prints a script that completes them in the shell."]
    )


def _summary(word: str) -> str:
    """The first line of a command's docstring, from its source: importing it would need the extras."""
    module, name = _place(word)
    spec = importlib.util.find_spec(module)
    loader: Any = spec.loader if spec else None
    for node in ast.parse(loader.get_source(module) if loader else "").body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


if __name__ == "__main__":
    sys.exit(main())
