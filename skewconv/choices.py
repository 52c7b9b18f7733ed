"""Choices of users, each typed once, and frozen dataclasses of them that check themselves. Nothing here needs torch.

Messages call a field by the flag that sets it on the command line: ``batch_size`` is ``--batch-size``.
"""

import dataclasses
import difflib
import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from skewconv.errors import ArgumentError

Config = TypeVar("Config")

Arch: TypeAlias = Literal["lipconvnet", "resnet-18", "resnet-34", "resnet-50"]
# The layers of a network.
ConvName: TypeAlias = Literal["soc", "bcop", "cayley", "aol", "sll", "cpl", "standard"]
ActivationName: TypeAlias = Literal["maxmin", "groupsort", "householder", "householder2"]
ResNetActivationName: TypeAlias = Literal["relu", "swish", "maxmin"]
HeadName: TypeAlias = Literal["orthogonal", "normalized", "conv"]
PaddingMode: TypeAlias = Literal["zeros", "circular"]
# The filter norm that SOC's polynomial is built for: the scaling bound, or the measured norm.
NormName: TypeAlias = Literal["bound", "tracked"]
# Along which axes the factors of BCOP shift: height, width, height, .. always, or as in the code of its authors.
FactorOrder: TypeAlias = Literal["height-first", "lconvnet"]
SplitName: TypeAlias = Literal["test", "validation"]
AttackName: TypeAlias = Literal["pgd", "fgsm", "autoattack", "rounding"]
AttackNorm: TypeAlias = Literal["l2", "linf"]
Scale: TypeAlias = Literal["cpu", "paper"]
Precision: TypeAlias = Literal["32-true", "bf16-mixed", "16-mixed"]
StoredWeights: TypeAlias = Literal["float32", "float16"]
DeviceName: TypeAlias = Literal["auto", "cpu", "cuda", "mps"]

#: the values of --data, besides folder:PATH
DATASETS = ("digits", "cifar10", "cifar100")
FOLDER = "folder:"
#: images that were given to skewconv.train.fit in memory
ARRAYS = "arrays"
DATASET_CHOICES = f"{', '.join(DATASETS)} or {FOLDER}PATH"
#: the share of each class to test on, where a folder has no split of its own
TEST_FRACTION = 0.2
#: the version of ONNX's operators that files are written for
DEFAULT_OPSET = 17
#: the l2 radii, in units of pixels in [0, 1], at which the literature reports certified accuracy
RADII = (36 / 255, 72 / 255, 108 / 255, 1.0)


def dataset_choices(name: str) -> str:
    return f"{DATASET_CHOICES}; did you mean {FOLDER}{name}?" if name and Path(name).is_dir() else DATASET_CHOICES


def radius_name(radius: float) -> str:
    """The name of a radius: in 255ths where it is a whole number of them, as in the literature.

    Reading the name gives the radius back, to the bit.

    >>> radius_name(36 / 255), radius_name(1.0), radius_name(0.25)
    ('36/255', '1', '0.25')
    """
    if float(short := f"{radius:g}") == radius:
        return short
    levels = round(radius * 255) if radius < 2**40 else 0
    return f"{levels}/255" if levels / 255 == radius else repr(radius)


def radius_of(name: str) -> float:
    """The radius of a name: "36/255" is 36 / 255."""
    top, slash, bottom = name.partition("/")
    return float(top) / float(bottom) if slash else float(name)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_kinds(config: Any) -> None:
    """Raise unless each value has the type of its annotation; an integer may stand for a float, and becomes one."""
    for name, hint in _hints(config.__class__).items():
        value = getattr(config, name)
        if not _is(value, hint):
            raise ArgumentError(f"{flag(name)} is {value!r}: it must be {described(hint)}")
        if type(value) is int and int not in (hint, *get_args(hint)) and get_origin(hint) is not Literal:
            object.__setattr__(config, name, float(value))


def require(config: Any, name: str, good: bool, rule: str) -> None:
    """Raise, naming the flag of a field, unless its value is good."""
    if not good:
        raise ArgumentError(f"{flag(name)} is {getattr(config, name)!r}: it must be {rule}")


def require_positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(config, name, value is None or 0 < value < math.inf, "positive")


def require_at_least(config: Any, least: int, *names: str) -> None:
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
    """A question for the name that was meant, to stand inside an error; empty if none is near."""
    near = difflib.get_close_matches(name, list(allowed), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def described(hint: Any) -> str:
    """The values an annotation allows, in words."""
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
        return type(value) in (int, float) and not math.isnan(value)
    return type(value) is int if hint is int else isinstance(value, hint)
