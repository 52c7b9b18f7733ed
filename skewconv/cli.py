"""The command line: words to commands, and refusals in one line. Answers that need no computing need no torch."""

import ast
import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import io
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
    "serve": "skewconv.commands.serve:Serve",
    "export": "skewconv.commands.export:ExportCommand",
    "reproduce": "skewconv.commands.reproduce:Reproduce",
    "import": "skewconv.commands.import_weights:Import",
    "bench": "skewconv.commands.bench:Bench",
    "data": "skewconv.commands.data:Data",
}
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
    if words[0] == "--completion":
        print(_completion_script(words[1:]))
        return 0
    return int(_parse(words[0], words[1:]).run())


def _place(word: str) -> tuple[str, str]:
    if word not in COMMANDS:
        near = difflib.get_close_matches(word, COMMANDS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        there = f"there are {', '.join(COMMANDS)}; try skewconv --help"
        raise SkewconvError(f"no command is called {word!r}: {hint}{there}")
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

    from skewconv.commands.flags import REGISTRY

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
        raise _refusal(stop, said.getvalue(), command, words, program) from None
    sys.stderr.write(said.getvalue())
    if unknown:
        raise _refused_word(unknown[0], command, program)
    return parsed


def _refused_word(word: str, command: Any, program: str) -> ArgumentError:
    """The error for an unknown word: the flag that was meant, or how an argument is given."""
    hint = ""
    if word.startswith("-"):
        arguments = _positional(command)
        near = difflib.get_close_matches(_name(word), [*arguments, *_flags(command)], n=1)
        if near and near[0] in arguments:
            hint = f"it is given without a flag, as in {' '.join([program, *arguments.values()])}; "
        elif near:
            hint = f"did you mean {flag(near[0])}? "
    return ArgumentError(f"{word} is not understood: {hint}{program} --help lists all flags")


def _refusal(stop: BaseException, said: str, command: Any, words: Sequence[str], program: str) -> SkewconvError:
    """Why the parser stopped: our own error where one stopped it, else the flag that it complained of."""
    from skewconv.commands.flags import given

    error: BaseException | None = stop
    while error is not None:
        if isinstance(error, SkewconvError):
            return error
        error = error.__context__
    flags = _flags(command)
    for found in re.findall(r"--[\w-]+", said):
        if (name := _name(found)) in flags and (values := given(name, words)) is not None:
            came = f"is {' '.join(values)!r}" if values else "has no value"
            return ArgumentError(f"{flag(name)} {came}: it must be {described(flags[name])}; try {program} --help")
    if unknown := [word for word in words if word.startswith("--") and _name(word).removeprefix("no_") not in flags]:
        return _refused_word(unknown[0], command, program)
    needed = [each.name for each in dataclasses.fields(command) if each.default is each.default_factory]
    positional = words and not words[0].startswith("-")
    if positional and (flagged := [name for name in needed[1:] if given(name, words) is None]):
        return ArgumentError(f"{flag(flagged[0])} is missing: {program} --help says what to give")
    what = f"{needed[0].removesuffix('_path').upper()} is missing" if needed else f"{' '.join(words)!r} makes no sense"
    return ArgumentError(f"{what}: {program} --help says what to give")


def _flags(command: Any) -> dict[str, Any]:
    """The flags of a command, those of its parts included, and their types."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(command).items():
        found |= _flags(hint) if dataclasses.is_dataclass(hint) else {name: hint}
    return {name: hint for name, hint in found.items() if name.removesuffix("_path") not in _positional(command)}


def _positional(command: Any) -> dict[str, str]:
    """The arguments of a command that have no flag, and their words in its usage line.

    Commands call the one that is a run `run_path`, as `run` is their method.
    """
    import tyro

    found = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        if tyro.conf.Positional in marks:
            metavar = next(mark.metavar for mark in marks if getattr(mark, "metavar", None))
            found[name.removesuffix("_path")] = metavar
    return found


def _name(word: str) -> str:
    return word.lstrip("-").partition("=")[0].replace("-", "_")


def _completion_script(words: Sequence[str]) -> str:
    """The completion script for the shell that the words name."""
    if len(words) != 1 or words[0] not in SHELLS:
        came = " ".join(words) or "nothing"
        raise ArgumentError(f"--completion takes the name of a shell, one of {', '.join(SHELLS)}, and {came} was given")
    commands = {word: _command(word) for word in COMMANDS}
    import tyro

    from skewconv.commands.flags import REGISTRY

    script, asked = io.StringIO(), ["--tyro-write-completion", words[0], "-"]
    # tyro prints the script and leaves the program.
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(script):
        tyro.extras.subcommand_cli_from_dict(commands, prog="skewconv", args=asked, registry=REGISTRY)
    return script.getvalue() + (_BASH_FILES if words[0] == "bash" else "")


def _overview() -> str:
    commands = [f"  {word:<10} {_summary(word)}" for word in COMMANDS]
    return "\n".join(
        [
            *("usage: skewconv COMMAND ...", "", *commands, ""),
            "skewconv COMMAND --help lists its flags; with no flags, skewconv train just works.",
            "skewconv --completion bash (zsh, fish) prints a script that completes them in the shell.",
        ]
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
