"""Why the words of a command line are refused: the word that is wrong, what is allowed there, what to do."""

import dataclasses
import difflib
import itertools
import re
from collections.abc import Sequence
from typing import Any, get_type_hints

import tyro

from skewconv.errors import ArgumentError, SkewconvError
from skewconv.fields import described, flag


def refused_word(word: str, command: Any, program: str) -> ArgumentError:
    """The error for a word that the command does not know: the flag that was meant, or how an argument is given."""
    hint = ""
    if word.startswith("-"):
        positional = _positional(command)
        near = difflib.get_close_matches(_name(word), [*positional, *_flags(command)], n=1)
        if near and near[0] in positional:
            hint = f"it is given without a flag, as in {' '.join([program, *positional.values()])}; "
        elif near:
            hint = f"did you mean {flag(near[0])}? "
    return ArgumentError(f"{word} is not understood: {hint}{program} --help lists all flags")


def refusal(stop: BaseException, said: str, command: Any, words: Sequence[str], program: str) -> SkewconvError:
    """Why the parser stopped: our own error where one stopped it, else the flag that it complained of."""
    error: BaseException | None = stop
    while error is not None:
        if isinstance(error, SkewconvError):
            return error
        error = error.__context__
    flags = _flags(command)
    for found in re.findall(r"--[\w-]+", said):
        if (name := _name(found)) in flags and (given := _given(name, words)) is not None:
            came = f"is {given!r}" if given else "has no value"
            return ArgumentError(f"{flag(name)} {came}: it must be {described(flags[name])}; try {program} --help")
    if unknown := [word for word in words if word.startswith("--") and _name(word).removeprefix("no_") not in flags]:
        return refused_word(unknown[0], command, program)
    needed = [each.name for each in dataclasses.fields(command) if each.default is each.default_factory]
    positional = words and not words[0].startswith("-")
    if positional and (flagged := [name for name in needed[1:] if _given(name, words) is None]):
        return ArgumentError(f"{flag(flagged[0])} is missing: {program} --help says what to give")
    what = f"{needed[0].removesuffix('_path').upper()} is missing" if needed else f"{' '.join(words)!r} makes no sense"
    return ArgumentError(f"{what}: {program} --help says what to give")


def _given(name: str, words: Sequence[str]) -> str | None:
    """The words given to a flag; None if it was not given."""
    for index, word in enumerate(words):
        start, equals, value = word.partition("=")
        if start.startswith("--") and _name(start) == name:
            following = itertools.takewhile(lambda each: not each.startswith("--"), words[index + 1 :])
            return value if equals else " ".join(following)
    return None


def _flags(command: Any) -> dict[str, Any]:
    """The flags of a command, those of its parts included, and what they may hold."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(command).items():
        found |= _flags(hint) if dataclasses.is_dataclass(hint) else {name: hint}
    return {name: hint for name, hint in found.items() if name not in _positional_fields(command)}


def _positional(command: Any) -> dict[str, str]:
    """The arguments of a command that have no flag, and how its usage line writes them.

    Commands call the one that is a run `run_path`, as `run` is their method.
    """
    return {name.removesuffix("_path"): shown for name, shown in _positional_fields(command).items()}


def _positional_fields(command: Any) -> dict[str, str]:
    found = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        if tyro.conf.Positional in marks:
            found[name] = next(mark.metavar for mark in marks if getattr(mark, "metavar", None))
    return found


def _name(word: str) -> str:
    return word.lstrip("-").partition("=")[0].replace("-", "_")
