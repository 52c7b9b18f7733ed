"""Frozen dataclasses that check themselves: types, ranges, and that no request is silently ignored.

Messages call a field by the flag that sets it on the command line: ``batch_size`` is ``--batch-size``.
"""

import dataclasses
import difflib
import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from skewconv.errors import ArgumentError

Config = TypeVar("Config")


def flag(name: str) -> str:
    """The flag that sets a field.

    >>> flag("batch_size")
    '--batch-size'
    """
    return "--" + name.replace("_", "-")


def check_kinds(config: Any) -> None:
    """Raise unless each value has the type of its annotation; an integer may stand for a float, and becomes one."""
    for name, hint in _hints(config.__class__).items():
        value = getattr(config, name)
        if not _is(value, hint):
            raise ArgumentError(f"{flag(name)} is {value!r}: it must be {described(hint)}")
        if isinstance(value, int) and not isinstance(value, bool) and not _is_integer_hint(hint):
            object.__setattr__(config, name, float(value))


def require(config: Any, name: str, good: bool, rule: str) -> None:
    """Raise, naming the flag of a field, unless its value is good."""
    if not good:
        raise ArgumentError(f"{flag(name)} is {getattr(config, name)!r}: it must be {rule}")


def require_positive(config: Any, *names: str) -> None:
    """Raise unless each of these fields is None or a finite number above 0."""
    for name in names:
        value = getattr(config, name)
        require(config, name, value is None or 0 < value < math.inf, "positive")


def require_at_least(config: Any, least: int, *names: str) -> None:
    """Raise unless each of these fields is None or at least `least`."""
    for name in names:
        value = getattr(config, name)
        require(config, name, value is None or value >= least, f"at least {least}")


def refuse_unused(config: Any, names: tuple[str, ...], reason: str) -> None:
    """Raise for a field that would have no effect and has another value than its default."""
    for each in dataclasses.fields(config):
        if each.name in names and getattr(config, each.name) != each.default:
            raise ArgumentError(f"{flag(each.name)} is {getattr(config, each.name)!r}, but it {reason}; leave it out")


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """The config with some of its values changed, those of its tables included, by the names of their flags."""
    tables = {name: value for name, value in vars(config).items() if dataclasses.is_dataclass(value)}
    owners = {name: table for table, value in tables.items() for name in _hints(value.__class__)}
    own = {name: name for name in vars(config) if name not in tables}
    for name in settings:
        if name not in owners | own:
            near = near_match(name, owners | own)
            raise ArgumentError(f"no setting is called {name!r}: {near}skewconv train --help lists them, as flags")
    changes = {name: value for name, value in settings.items() if name in own}
    for table, value in tables.items():
        inner = {name: each for name, each in settings.items() if owners.get(name) == table}
        changes[table] = dataclasses.replace(value, **inner)  # type: ignore[type-var]
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def near_match(name: str, allowed: Iterable[str]) -> str:
    """A question for the name that was meant, to stand inside an error; empty if none is near.

    >>> near_match("epoch", ["epochs", "minutes"])
    "did you mean 'epochs'? "
    """
    near = difflib.get_close_matches(name, list(allowed), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def described(hint: Any) -> str:
    """The values an annotation allows, in words.

    >>> described(int | None)
    'an integer or none'
    """
    if get_origin(hint) is Annotated:
        return described(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(described(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return f"any number of values, each {described(get_args(hint)[0])}"
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false", Path: "a path"}
    return "none" if hint is type(None) else names.get(hint, getattr(hint, "__name__", str(hint)))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _is(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if origin in (Union, UnionType):
        return any(_is(value, part) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(item, parts[0]) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _is_integer_hint(hint: Any) -> bool:
    return hint is int or int in get_args(hint) or get_origin(hint) is Literal
