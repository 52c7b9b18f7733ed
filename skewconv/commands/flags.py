"""Flags that several commands share, and how values are written: 36/255 is a number, none is no value."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from skewconv.choices import DeviceName, SplitName, radius_name, radius_of
from skewconv.progress import Progress

if TYPE_CHECKING:
    from skewconv.train.run import EvalData, Run

Switch: TypeAlias = Annotated[bool, tyro.conf.FlagCreatePairsOff]
RunPath: TypeAlias = Annotated[
    tyro.conf.Positional[Path],
    tyro.conf.arg(
        name="run",
        metavar="RUN",
        help="Folder of a run, checkpoint file, or cifar10, the network that comes with the package.",
    ),
]
ImageCount: TypeAlias = Annotated[
    int | None, tyro.conf.arg(help="Number of images, spread evenly over the split (none: all).")
]
BatchSize: TypeAlias = Annotated[int, tyro.conf.arg(help="Batch size.")]
Device: TypeAlias = Annotated[DeviceName, tyro.conf.arg(help="Kind of device (auto: a GPU if there is one).")]
Quiet: TypeAlias = Annotated[Switch, tyro.conf.arg(help="Show no progress.")]
Json: TypeAlias = Annotated[Switch, tyro.conf.arg(help="Print one JSON document instead of a text for people.")]
Overwrite: TypeAlias = Annotated[Switch, tyro.conf.arg(help="Replace results that were made with other settings.")]
ResultsFolder: TypeAlias = Annotated[Path | None, tyro.conf.arg(help="Folder for the results (none: that of the run).")]
Split: TypeAlias = Annotated[
    SplitName | None,
    tyro.conf.arg(help="Test images, or those the run held out (none: those of its own evaluations)."),
]
OtherData: TypeAlias = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="folder:PATH",
        help="Pictures to take instead of the run's own; their folders must be classes of the run.",
    ),
]
Fast: TypeAlias = Annotated[
    Switch,
    tyro.conf.arg(
        help="Freeze the network at a tolerance of 1e-3 first: a faster function with its own proven bounds, which all "
        "results are then about."
    ),
]
SkipBad: TypeAlias = Annotated[Switch, tyro.conf.arg(help="Name and leave out files of --data that cannot be read.")]


@dataclass(frozen=True)
class EvalFlags:
    """The flags of commands that evaluate a run on images."""

    run_path: RunPath
    data: OtherData = None
    skip_bad: SkipBad = False
    split: Split = None
    images: ImageCount = None
    quiet: Quiet = False
    json: Json = False

    def open_run(self, place: Path, progress: Progress, **changes: Any) -> "tuple[Run, EvalData]":
        """The run and its images."""
        from skewconv.train.run import eval_data, open_run

        options: dict[str, Any] = {name: getattr(self, name) for name in ("data", "skip_bad", "split", "images")}
        run = open_run(place)
        return run, eval_data(run, progress=progress, **{**options, **changes})


def given(name: str, words: Sequence[str]) -> list[str] | None:
    """The values given to a flag, by the name of its field; None if the flag is not among the words.

    >>> given("batch_size", ["--lr", "1", "--batch-size=8"]), given("radii", ["--radii", "0", "1"])
    (['8'], ['0', '1'])
    """
    for index, word in enumerate(words):
        start, equals, value = word.partition("=")
        if start.startswith("--") and start[2:].replace("-", "_") == name:
            return [value] if equals else list(takewhile(lambda each: not each.startswith("--"), words[index + 1 :]))
    return None


REGISTRY = ConstructorRegistry()
_METAVARS: dict[Any, str] = {int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}


@REGISTRY.primitive_rule
def _plain(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Numbers, integers, texts and paths, or none where the annotation allows None."""
    kinds, kind = _kinds(info.type)
    if kind not in _METAVARS:
        return None
    read: Any = radius_of if kind is float else kind

    def from_words(words: list[str]) -> Any:
        if NoneType in kinds and words[0].lower() == "none":
            return None
        try:
            return read(words[0])
        except ArithmeticError as error:
            raise ValueError(str(error)) from error

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=_METAVARS[kind],
        instance_from_str=from_words,
        is_instance=lambda value: isinstance(value, (*kinds, int) if kind is float else kinds),
        str_from_instance=lambda value: [_shown(value)],
    )


@REGISTRY.primitive_rule
def _choice(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """One of some words, or true or false, or none where the annotation allows None."""
    kinds, kind = _kinds(info.type)
    if NoneType not in kinds or (get_origin(kind) is not Literal and kind is not bool):
        return None
    values = (True, False) if kind is bool else get_args(kind)
    meanings = {**{str(value).lower(): value for value in values}, "none": None}

    def from_words(words: list[str]) -> Any:
        if words[0].lower() not in meanings:
            raise ValueError(f"{words[0]} is none of {', '.join(meanings)}")
        return meanings[words[0].lower()]

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="{" + ",".join(list(meanings)[:-1]) + "}",
        instance_from_str=from_words,
        is_instance=lambda value: value is None or value in values,
        str_from_instance=lambda value: [_shown(value).lower()],
    )


def _kinds(hint: Any) -> tuple[tuple[Any, ...], Any]:
    """The parts of a union, and the one that is not None (None if there are several)."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    solid = [kind for kind in kinds if kind is not NoneType]
    return kinds, solid[0] if len(solid) == 1 else None


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return radius_name(value)
    return "none" if value is None else str(value)
