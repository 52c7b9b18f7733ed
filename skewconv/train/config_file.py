"""Configs that people keep: read from a run, a JSON or a TOML file, and left in the folder of every run."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skewconv._version import __version__
from skewconv.config import TrainConfig, from_dict, to_dict
from skewconv.errors import ArgumentError
from skewconv.extras import optional
from skewconv.records import atomic_write
from skewconv.train.presets import preset, recipe

CONFIG = "config.json"
README = "README.md"


def read_config(path: Path) -> TrainConfig:
    """The config in a file. What it leaves out is as in the recipe for its data, or in its preset.

    Args:
        path: the folder of a run, its config.json or record.json, a TOML file with the same keys, or - for what comes
            from standard input, as JSON.
    """
    file = path / CONFIG if path.is_dir() else path
    try:
        text = sys.stdin.read() if str(path) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"the config {file} cannot be read ({error}): name the folder of a run, a JSON or a TOML file"
        ) from error
    try:
        plain = _toml(text) if file.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        kind = "TOML" if file.suffix == ".toml" else "JSON"
        raise ArgumentError(f"{file} is not {kind}: {error}") from error
    if isinstance(plain, Mapping) and "config" in plain and "results" in plain:
        plain = plain["config"]  # a record
    if not isinstance(plain, Mapping):
        raise ArgumentError(f"{file} holds no config: a config is a table of settings, as in the {CONFIG} of a run")
    try:
        return from_dict(TrainConfig, _over(to_dict(_base(plain)), plain))
    except ArgumentError as error:
        raise ArgumentError(f"{file}: {error}") from error


def describe_run(folder: Path, config: TrainConfig, words: Sequence[str] | None = None) -> None:
    """Leave the config, and a README with the first command, in the folder of a run; going on may change the config.

    Args:
        folder: of the run.
        config: all that the run was told.
        words: of the command line; None where there was none.
    """
    how = f"skewconv {shlex.join(words)}" if words is not None else f"skewconv train --config {CONFIG}"
    files = {
        CONFIG: json.dumps(to_dict(config), indent=2) + "\n",
        README: f"""A training run, made by skewconv {__version__} on Python {sys.version.split()[0]} with

    {how}

The same again, in another folder: `skewconv train --config {CONFIG} --out FOLDER`.
""",
    }
    for name, text in files.items():
        if name == CONFIG or not (folder / name).exists():
            atomic_write(folder / name, text.encode())


def _base(plain: Mapping[str, Any]) -> TrainConfig:
    """The config that a file changes; a file that gives minutes gives no epochs."""
    name, data = plain.get("preset"), plain.get("data", "digits")
    return preset(name) if isinstance(name, str) else recipe(data if isinstance(data, str) else "digits")


def _over(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the changes, table by table; minutes stand in the place of epochs, and the other way round."""
    result = dict(base)
    for one, other in (("minutes", "epochs"), ("epochs", "minutes")):
        if changes.get(one) is not None and other in base:
            result[other] = None
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(base.get(key), dict)
        result[key] = _over(base[key], value) if both else value
    return result


def _toml(text: str) -> Any:
    # Part of Python from 3.11 on; tomli is the same for 3.10, and comes with the extra "train".
    return optional("tomllib" if sys.version_info >= (3, 11) else "tomli", "tomli").loads(text)
