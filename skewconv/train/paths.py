"""The files of a run: their names, how a run is found, its config and README. Nothing here needs torch."""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skewconv._version import __version__
from skewconv.config import TrainConfig, from_dict, to_dict
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.extras import optional
from skewconv.records import atomic_write
from skewconv.train.presets import preset, recipe

FILE = "checkpoint.safetensors"
RECORD = "record.json"
CONFIG = "config.json"
README = "README.md"
#: written by skewconv audit
AUDIT = "audit.json"
#: written by skewconv certify
CERTIFICATES = "certificates.json"
#: the record of several runs that differ in their seeds only
SEEDS = "seeds.json"
#: the networks that come with the package
SHIPPED = Path(__file__).parents[1] / "shipped"
WEIGHTS_SUFFIX = ".safetensors"


class CheckpointError(SkewconvError):
    """A file that is no checkpoint of this library, is damaged, or does not fit."""


def existing_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The checkpoint of a run's folder, or the file itself; a name that is no path may be a network of the package."""
    place = Path(path).expanduser()
    if not place.exists() and os.fspath(path) in shipped_names():
        return SHIPPED / f"{os.fspath(path)}{WEIGHTS_SUFFIX}"
    if place.is_dir():
        if not (place / FILE).exists():
            raise CheckpointError(f"{path} holds no {FILE}: it is not the folder of a run; train one with --out {path}")
        return place / FILE
    if not place.exists():
        raise CheckpointError(f"{path} does not exist: give the folder of a run, or its {FILE}")
    return place


def shipped_names() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob(f"*{WEIGHTS_SUFFIX}"))


def is_shipped(checkpoint: Path) -> bool:
    """True for a network of the package, whose folder is not written to."""
    return checkpoint.parent == SHIPPED


def record_beside(weights: Path) -> Path:
    return weights.with_suffix(".json")


def certificates_of(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.stem}-certificates.json" if is_shipped(checkpoint) else CERTIFICATES)


def results_folder(checkpoint: Path, out: Path | None) -> Path:
    """The folder a command writes to: `out`, created if need be, or that of the run."""
    if out is None and is_shipped(checkpoint):
        raise ArgumentError(f"{checkpoint.stem} comes with the package: give --out, a folder for the results")
    return make_folder(out or checkpoint.parent)


def make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"--out is {folder}, which cannot be made a folder ({error}): choose another") from error
    return folder


def read_config(path: Path) -> TrainConfig:
    """The config of a run's folder or of a JSON or TOML file (-: standard input), on top of its recipe or preset."""
    file = path / CONFIG if path.is_dir() else path
    try:
        text = sys.stdin.read() if str(path) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"the config {file} cannot be read ({error}): name the folder of a run, a JSON or a TOML file"
        ) from error
    kind = "TOML" if file.suffix == ".toml" else "JSON"
    # Part of Python from 3.11 on; tomli is the same for 3.10, and comes with the extra "train".
    toml = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        plain = optional(toml, "tomli").loads(text) if kind == "TOML" else json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"{file} is not {kind}: {error}") from error
    if isinstance(plain, Mapping) and "config" in plain and "results" in plain:
        plain = plain["config"]  # a record
    if not isinstance(plain, Mapping):
        raise ArgumentError(f"{file} holds no config: a config is a table of settings, as in the {CONFIG} of a run")
    name, data = plain.get("preset"), plain.get("data")
    base = preset(name) if isinstance(name, str) else recipe(data if isinstance(data, str) else "digits")
    try:
        return from_dict(TrainConfig, _merged(to_dict(base), plain))
    except ArgumentError as error:
        raise ArgumentError(f"{file}: {error}") from error


def describe_run(folder: Path, config: TrainConfig, words: Sequence[str] | None = None) -> None:
    how = f"skewconv {shlex.join(words)}" if words is not None else f"skewconv train --config {CONFIG}"
    readme = f"""A training run, made by skewconv {__version__} on Python {sys.version.split()[0]} with

    {how}

The same again, in another folder: `skewconv train --config {CONFIG} --out FOLDER`.
"""
    atomic_write(folder / CONFIG, (json.dumps(to_dict(config), indent=2) + "\n").encode())
    if not (folder / README).exists():
        atomic_write(folder / README, readme.encode())


def _merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the changes, table by table; minutes replace epochs, and the other way round."""
    result = dict(base)
    for one, other in (("minutes", "epochs"), ("epochs", "minutes")):
        if changes.get(one) is not None and other in base:
            result[other] = None
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(base.get(key), dict)
        result[key] = _merged(base[key], value) if both else value
    return result
