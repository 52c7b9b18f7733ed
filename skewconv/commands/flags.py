"""Flags that several commands share, and how values are written: 36/255 is a number, none is no value."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from skewconv.choices import DeviceName, SplitName, described, radius_name, radius_of
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
Json: TypeAlias = Annotated[Switch, tyro.conf.arg(help="Print one JSON document in place of a text.")]
Overwrite: TypeAlias = Annotated[Switch, tyro.conf.arg(help="Replace results that were made with other settings.")]
ResultsFolder: TypeAlias = Annotated[Path | None, tyro.conf.arg(help="Folder for the results (none: the run's own).")]
Split: TypeAlias = Annotated[
    SplitName | None,
    tyro.conf.arg(help="Split: test, or validation, which the run held out (none: the run's own)."),
]
OtherData: TypeAlias = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="folder:PATH",
        help="Pictures in place of the run's own; their folders must be classes of the run.",
    ),
]
Fast: TypeAlias = Annotated[
    Switch,
    tyro.conf.arg(
        help="Frozen copy of the network in its place (tolerance 1e-3): faster; all results are those of the copy."
    ),
]
SkipBad: TypeAlias = Annotated[Switch, tyro.conf.arg(help="Leave out and name files of --data that cannot be read.")]


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
        if run.unfinished:
            print(run.unfinished, file=sys.stderr)
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
def _value(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Numbers, integers, texts and paths; and where the annotation allows None, none, choices, true and false."""
    kinds = get_args(info.type) if get_origin(info.type) in (Union, UnionType) else (info.type,)
    solid = [kind for kind in kinds if kind is not NoneType]
    kind = solid[0] if len(solid) == 1 else None
    if kind in _METAVARS:
        read: Any = radius_of if kind is float else kind
        metavar = _METAVARS[kind]
        allowed: Any = (*kinds, int) if kind is float else kinds
    elif NoneType in kinds and (get_origin(kind) is Literal or kind is bool):
        values = (True, False) if kind is bool else get_args(kind)
        meanings = {str(value).lower(): value for value in values}
        read, metavar = lambda word: meanings[word.lower()], "{" + ",".join(meanings) + "}"
        allowed = tuple({type(value) for value in (*values, None)})
    else:
        return None

    def from_words(words: list[str]) -> Any:
        if NoneType in kinds and words[0].lower() == "none":
            return None
        try:
            return read(words[0])
        except (ArithmeticError, KeyError, ValueError):
            raise ValueError(f"{words[0]!r} is not {described(info.type)}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=from_words,
        is_instance=lambda value: isinstance(value, allowed),
        str_from_instance=lambda value: [_shown(value)],
    )


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return radius_name(value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
