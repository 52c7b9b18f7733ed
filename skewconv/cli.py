"""The command line: words to commands. Answers that need no computing need no torch."""

import ast
import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import io
import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from skewconv._version import __version__
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.extras import missing_extra
from skewconv.fields import described, flag

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
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"skewconv {__version__}")
        return 0
    try:
        if words[0] == "--completion":
            from skewconv.commands.completion import completion_script

            print(completion_script({word: _command(word) for word in COMMANDS}, words[1:]))
            return 0
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

    from skewconv.commands.vocabulary import REGISTRY

    options = {"default": command.defaults(words)} if hasattr(command, "defaults") else {}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed, unknown = tyro.cli(
                command, args=words, prog=f"skewconv {word}", return_unknown_args=True, registry=REGISTRY, **options
            )
    except SystemExit as stop:
        if stop.code in (None, 0):
            raise
        raise _refusal(stop, said.getvalue(), command, words, f"skewconv {word} --help") from None
    sys.stderr.write(said.getvalue())
    if unknown:
        near = difflib.get_close_matches(_name(unknown[0]), _flags(command), n=1)
        hint = f"did you mean {flag(near[0])}? " if near and unknown[0].startswith("-") else ""
        raise ArgumentError(f"{unknown[0]} is not understood: {hint}skewconv {word} --help lists all flags")
    return parsed


def _refusal(stop: BaseException, said: str, command: Any, words: Sequence[str], help_command: str) -> SkewconvError:
    """Why the words were refused: our own error where one stopped the parser, else the flag it complained of."""
    error: BaseException | None = stop
    while error is not None:
        if isinstance(error, SkewconvError):
            return error
        error = error.__context__
    flags = _flags(command)
    for found in re.findall(r"--[\w-]+", said):
        if (name := _name(found)) in flags and (given := _given(name, words)) is not None:
            came = f"is {given!r}" if given else "has no value"
            return ArgumentError(f"{flag(name)} {came}: it must be {described(flags[name])}; try {help_command}")
    # Positional arguments have no flag; commands call the one that is a run `run_path`, as `run` is their method.
    needed = [each.name for each in dataclasses.fields(command) if each.default is each.default_factory]
    positional = words and not words[0].startswith("-")
    if positional and (flagged := [name for name in needed[1:] if _given(name, words) is None]):
        return ArgumentError(f"{flag(flagged[0])} is missing: {help_command} says what to give")
    what = f"{needed[0].removesuffix('_path').upper()} is missing" if needed else f"{' '.join(words)!r} makes no sense"
    return ArgumentError(f"{what}: {help_command} says what to give")


def _given(name: str, words: Sequence[str]) -> str | None:
    """The words given to a flag; None if it was not given."""
    for index, word in enumerate(words):
        start, equals, value = word.partition("=")
        if start.startswith("--") and _name(start) == name:
            following = itertools.takewhile(lambda each: not each.startswith("--"), words[index + 1 :])
            return value if equals else " ".join(following)
    return None


def _flags(command: Any) -> dict[str, Any]:
    """The fields of a command, those of its parts included, and what they may hold."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(command).items():
        found |= _flags(hint) if dataclasses.is_dataclass(hint) else {name: hint}
    return found


def _name(word: str) -> str:
    return word.lstrip("-").partition("=")[0].replace("-", "_")


def _overview() -> str:
    lines = ["usage: skewconv COMMAND ...", ""]
    lines += [f"  {word:<10} {_summary(word)}" for word in COMMANDS]
    lines += ["", "skewconv COMMAND --help lists its flags; with no flags, skewconv train just works."]
    return "\n".join(
        [*lines, "skewconv --completion bash (zsh, fish, tcsh) prints a script that completes them in the shell."]
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
