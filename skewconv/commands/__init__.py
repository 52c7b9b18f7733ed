"""The commands, one module each: a frozen dataclass of typed flags whose `run` does the work and returns a status.

A module here imports nothing heavy at its top: flags are read, and mistakes in them are answered, without torch. This
file has what commands share: flags, how values are written (36/255 is a number, none is no value), how results are
printed, and when they are overwritten.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from skewconv.choices import DeviceName, SplitName
from skewconv.config import described
from skewconv.errors import ArgumentError
from skewconv.extras import optional
from skewconv.progress import Progress
from skewconv.records import RecordError, as_json, radius_name, radius_of, read_record

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


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print the JSON document of a command with --json."""
    print(as_json(document))


def print_table(title: str, rows: Sequence[Sequence[str]], heads: Sequence[str] = (), numbers: int = 0) -> None:
    """Print names and values for a person, or columns with these heads, the last `numbers` of them numbers."""
    table = optional("rich.table", "rich").Table(title=title or None, show_header=bool(heads), title_justify="left")
    for place, head in enumerate(heads or ("", "")):
        number = place >= len(heads or ("", "")) - numbers
        # On a narrow screen the widest column is folded first, so that values stay whole beside long names.
        table.add_column(head, overflow="fold", no_wrap=number, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    optional("rich.console", "rich").Console(highlight=False, markup=False).print(table)


def metric_rows(title: str, results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Number of images (by their title), clean and certified accuracy, Lipschitz bound: the results of a record."""
    rows = [(title, f"{results['images']:,}"), ("clean accuracy", f"{results['clean']:.2%}")]
    for radius, share in results.get("certified", {}).items():
        float32 = results.get("certified_float32", {}).get(radius)
        beside = "" if float32 is None else f"  float32 {float32:.2%}"
        rows.append((f"certified accuracy at l2 radius {radius}", f"{share:.2%}{beside}"))
    if "lipschitz_upper_bound" in results:
        rows.append(("mean certified radius", f"{results['mean_radius']:.4f}"))
        rows.append(("proven Lipschitz bound, pixels to logits", f"{results['lipschitz_upper_bound']:.6f}"))
    if "attacked" in results:
        rows.append((f"accuracy under PGD, of {results['attacked_images']:,} images", f"{results['attacked']:.2%}"))
    return rows


def is_the_program() -> bool:
    """True if this process is the command line itself, not a program that calls it."""
    program = Path(sys.argv[0])
    return program.stem == "skewconv" or program.parts[-2:] == ("skewconv", "__main__.py")


def refuse_overwrite(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to replace a record whose results have other values of these settings."""
    if not path.exists():
        return
    try:
        before = read_record(path)["results"]
    except RecordError:
        raise ArgumentError(f"{path} is no record of skewconv: move it away, or give --overwrite") from None
    changed = {name: value for name, value in settings.items() if before.get(name) != value}
    if changed:
        changes = [f"{name} was {before.get(name)} and is now {value}" for name, value in changed.items()]
        raise ArgumentError(
            f"{path} holds the results of other settings ({'; '.join(changes)}): give --overwrite, or another --out"
        )
