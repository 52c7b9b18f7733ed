"""The files of a run: how they are called, and where the one that was named lies. Looking needs no torch."""

import os
from pathlib import Path

from skewconv.errors import ArgumentError, SkewconvError

FILE = "checkpoint.safetensors"
RECORD = "record.json"
#: what skewconv audit writes
AUDIT = "audit.json"
#: the record of several runs that differ in their seeds only
SEEDS = "seeds.json"
#: where the networks that come with the package lie
SHIPPED = Path(__file__).parents[1] / "shipped"
WEIGHTS_SUFFIX = ".safetensors"


class CheckpointError(SkewconvError):
    """A file that is no checkpoint of this library, is damaged, or does not fit."""


def existing_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The checkpoint of a run's folder, or the file itself; a name that is no path may be a network of the package.

    Raises:
        CheckpointError: there is none.
    """
    place = Path(path).expanduser()
    if not place.exists() and (weights := shipped_weights(path)) is not None:
        return weights
    if place.is_dir():
        if not (place / FILE).exists():
            raise CheckpointError(f"{path} holds no {FILE}: it is not the folder of a run; train one with --out {path}")
        return place / FILE
    if not place.exists():
        raise CheckpointError(f"{path} does not exist: give the folder of a run, or its {FILE}")
    return place


def shipped_names(folder: Path | None = None) -> list[str]:
    """The names under which `skewconv.load` knows a network of the package."""
    return sorted(path.name.removesuffix(WEIGHTS_SUFFIX) for path in (folder or SHIPPED).glob(f"*{WEIGHTS_SUFFIX}"))


def shipped_weights(name: str | os.PathLike[str]) -> Path | None:
    """The weights of a network of the package; None if the name is none of theirs."""
    return SHIPPED / f"{os.fspath(name)}{WEIGHTS_SUFFIX}" if os.fspath(name) in shipped_names() else None


def is_shipped(checkpoint: Path) -> bool:
    """Whether it comes with the package, whose folder is not written to."""
    return checkpoint.parent == SHIPPED


def folder_for_results(checkpoint: Path, out: Path | None) -> Path:
    """The folder that a command writes to: the one that was named, made if need be, or that of the run."""
    folder = out or checkpoint.parent
    if out is None and is_shipped(checkpoint):
        raise ArgumentError(f"{checkpoint.stem} comes with the package: give --out, a folder for the results")
    return make_folder(folder)


def make_folder(folder: Path) -> Path:
    """The folder that --out names, made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"--out is {folder}, which cannot be made a folder ({error}): choose another") from error
    return folder


def record_beside(weights: Path) -> Path:
    """The record of shipped weights."""
    return weights.with_suffix(".json")
