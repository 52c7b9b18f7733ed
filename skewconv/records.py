"""Results as JSON records with their provenance, and atomic writing of files."""

import contextlib
import dataclasses
import glob
import json
import math
import os
import platform
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from skewconv._version import __version__
from skewconv.errors import ArgumentError, SkewconvError

SCHEMA = 1
_FIELDS: dict[str, tuple[type, ...]] = {
    "schema": (int,),
    "kind": (str,),
    "time": (str,),
    "seed": (int, type(None)),
    "config": (dict,),
    "results": (dict,),
    "versions": (dict,),
    "machine": (dict,),
    "git": (dict, type(None)),
}
# JSON has no NaN and no infinity; a diverged loss is still a result worth keeping.
_NON_FINITE = "$float"


class RecordError(SkewconvError):
    """A file that is not a record this version can read."""


class WriteError(SkewconvError):
    """A file could not be written; an older file of its name is intact."""


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


def make_record(kind: str, *, config: Any, seed: int | None, results: Mapping[str, Any]) -> dict[str, Any]:
    """Results with config, seed, versions, machine and git state, ready for JSON.

    >>> record = make_record("demo", config={"depth": 5}, seed=0, results={"loss": float("nan")})
    >>> record["kind"], record["config"], record["seed"], record["results"]
    ('demo', {'depth': 5}, 0, {'loss': nan})

    Config (a mapping or a dataclass) and results hold numbers, strings, lists and mappings with string keys; arrays and
    tensors become lists. Paths are refused, as records are published.
    """
    return {
        "schema": SCHEMA,
        "kind": kind,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
        "config": _plain(config, "config"),
        "results": _plain(results, "results"),
        "versions": _versions(),
        "machine": _machine(),
        "git": _git(),
    }


def write_record(path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
    """Write a record as strict JSON, atomically."""
    plain = _plain(record, "record")
    _check(plain, "the record")
    atomic_write(path, (as_json(plain) + "\n").encode())


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a record back, checked: the same values as were written, NaN and infinities included."""
    name = os.fspath(path)
    try:
        record = json.loads(Path(path).read_bytes(), parse_constant=_no_constant, object_hook=_decode)
    except OSError as error:
        raise RecordError(f"{name}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{name}: not a JSON document ({error}): the file is damaged or is no record") from error
    _check(record, name)
    assert isinstance(record, dict)
    return record


def atomic_write(path: str | os.PathLike[str], content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write bytes, or what a function writes, whole or not at all: to a temporary file that is then renamed."""
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        # Not tempfile: its files are private (0600), and a record should obey the umask like any other file.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = f"{error.strerror or error}. An older file of that name is intact"
        raise WriteError(f"{os.fspath(path)} was not written: {reason}") from error
    # A power cut may else undo the renaming. Some systems cannot sync folders: the file is in place all the same.
    with contextlib.suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files that processes killed inside ``atomic_write(path)`` left; call it as sole writer."""
    target = Path(os.path.realpath(path))
    for file in target.parent.glob(f".{glob.escape(target.name)}.{'?' * 12}.tmp"):
        file.unlink(missing_ok=True)


def _plain(value: Any, where: str) -> Any:
    """The value made of dict, list, str, int, float, bool and None only; `where` names it in errors."""
    if isinstance(value, bool | None):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), f"{where}.{name}") for name in names}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ArgumentError(f"{where} has the key {key!r}: keys must be strings; convert it first")
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    # numpy arrays and scalars, and tensors, without importing either.
    if callable(getattr(value, "tolist", None)):
        return _plain(value.tolist(), where)
    raise ArgumentError(
        f"{where} is a {type(value).__name__}: records hold numbers, strings, lists, mappings, dataclasses; convert it"
    )


def as_json(document: Any) -> str:
    """Plain values as JSON, which has no NaN and no infinity: these stand as in a record."""
    return json.dumps(_encode(document), indent=2, allow_nan=False)


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_NON_FINITE: str(value)}
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    return value


def _decode(pairs: dict[str, Any]) -> Any:
    if _NON_FINITE not in pairs:
        return pairs
    if len(pairs) == 1 and pairs[_NON_FINITE] in ("nan", "inf", "-inf"):
        return float(pairs[_NON_FINITE])
    raise ValueError(f"{_NON_FINITE} must stand alone and be nan, inf or -inf")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check(record: Any, name: str) -> None:
    if not isinstance(record, dict):
        raise RecordError(f"{name}: a record is a JSON object, not a {type(record).__name__}")
    if "schema" in record and record["schema"] != SCHEMA:
        raise RecordError(
            f"{name}: schema {record['schema']!r}, this version reads {SCHEMA}: use the version that wrote it"
        )
    if unknown := sorted(set(record) ^ set(_FIELDS)):
        raise RecordError(f"{name}: the fields {unknown} are missing or unknown: a record has {sorted(_FIELDS)}")
    for field, kinds in _FIELDS.items():
        if not isinstance(record[field], kinds) or isinstance(record[field], bool):
            raise RecordError(f"{name}: the field {field!r} is a {type(record[field]).__name__}: the file is damaged")


def _versions() -> dict[str, str | None]:
    # Records are also read by commands that should answer at once.
    from importlib import metadata

    versions: dict[str, str | None] = {"skewconv": __version__, "python": platform.python_version()}
    for library in ("torch", "numpy", "scipy"):
        # A loaded library says more than its package does: 2.13.0+cu130 for 2.13.0.
        versions[library] = getattr(sys.modules.get(library), "__version__", None)
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[library] = versions[library] or metadata.version(library)
    return versions


def _machine() -> dict[str, Any]:
    """The machine, for comparing speeds. No host name, no user name, no paths: records are published."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads, memory, accelerators = None, None, []
    with contextlib.suppress(AttributeError, OSError, ValueError):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # A process that computed something has torch loaded already; one that only reads records need not load it.
    if (torch := sys.modules.get("torch")) is not None:
        threads = torch.get_num_threads()
        if torch.cuda.is_available():
            accelerators = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": _cpu_model(),
        "cores": cores,
        "threads": threads,
        "memory_bytes": memory,
        "accelerators": accelerators,
    }


def _cpu_model() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def _git() -> dict[str, Any] | None:
    """Commit and dirtiness of the checkout this package runs from; None if it was installed."""
    try:
        # A virtual environment may lie inside another project's checkout: ask whether git tracks this very package.
        _ask_git("ls-files", "--error-unmatch", "__init__.py")
        return {"commit": _ask_git("rev-parse", "HEAD"), "dirty": bool(_ask_git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _ask_git(*words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent), *words]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, env=environment)
    return answer.stdout.strip()
