"""The command line: words to commands."""

import contextlib
import dataclasses
import difflib
import importlib
import io
import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from skewconv._version import __version__
from skewconv.config import described
from skewconv.errors import ArgumentError, SkewconvError

#: word -> module:class; one line makes a new command
COMMANDS: Mapping[str, str] = {
    "train": "skewconv.commands.train:Train",
    "evaluate": "skewconv.commands.evaluate:Evaluate",
    "certify": "skewconv.commands.certify:Certify",
    "audit": "skewconv.commands.audit:Audit",
    "attack": "skewconv.commands.attack:Attack",
    "predict": "skewconv.commands.predict:Predict",
    "report": "skewconv.commands.report:Report",
    "reproduce": "skewconv.commands.reproduce:Reproduce",
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
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed, unknown = tyro.cli(
                command, args=words, prog=f"skewconv {word}", return_unknown_args=True, **options
            )
    except SystemExit as stop:
        if stop.code in (None, 0):
            raise
        raise _refusal(stop, said.getvalue(), command, words, f"skewconv {word} --help") from None
    sys.stderr.write(said.getvalue())
    if unknown:
        near = difflib.get_close_matches(_name(unknown[0]), _flags(command), n=1)
        hint = f"did you mean {_flag(near[0])}? " if near and unknown[0].startswith("-") else ""
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
            return ArgumentError(f"{name} {came}: it must be {described(flags[name])}; try {help_command}")
    # Positional arguments have no flag; commands call the one that is a run `run_path`, as `run` is their method.
    needed = [each.name for each in dataclasses.fields(command) if each.default is each.default_factory]
    what = f"{needed[0].removesuffix('_path').upper()} is missing" if needed else f"{' '.join(words)!r} makes no sense"
    return ArgumentError(f"{what}: {help_command} says what to give")


def _given(name: str, words: Sequence[str]) -> str | None:
    """The words given to a flag; None if it was not given."""
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag.startswith("--") and _name(flag) == name:
            following = itertools.takewhile(lambda each: not each.startswith("--"), words[index + 1 :])
            return value if equals else " ".join(following)
    return None


def _flags(command: Any) -> dict[str, Any]:
    """The fields of a command, those of its parts included, and what they may hold."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(command).items():
        found |= _flags(hint) if dataclasses.is_dataclass(hint) else {name: hint}
    return found


def _name(flag: str) -> str:
    return flag.lstrip("-").partition("=")[0].replace("-", "_")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _overview() -> str:
    lines = ["usage: skewconv COMMAND ...", ""]
    for word in COMMANDS:
        summary = (_command(word).__doc__ or "").strip().splitlines()[0]
        lines.append(f"  {word:<10} {summary}")
    return "\n".join([*lines, "", "skewconv COMMAND --help lists its flags; with no flags, skewconv train just works."])


if __name__ == "__main__":
    sys.exit(main())
