"""Results of an earlier command are not replaced in silence by those of other settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skewconv.choices import radius_name
from skewconv.errors import ArgumentError
from skewconv.records import RecordError, read_record


def refuse_other_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to replace a record whose results were had with other settings.

    Args:
        path: of the record that would be written.
        settings: each a key of the results, and the value it will have.
    """
    if not path.exists():
        return
    try:
        before = read_record(path)["results"]
    except RecordError:
        raise ArgumentError(f"{path} is no record of skewconv: move it away, or give --overwrite") from None
    old, new = _flat({name: before.get(name) for name in settings}), _flat(settings)
    changes = [
        f"{name} was {_shown(old.get(name))} and is now {_shown(new.get(name))}"
        for name in dict.fromkeys((*new, *old))
        if old.get(name) != new.get(name)
    ]
    if changes:
        raise ArgumentError(
            f"{path} holds the results of other settings ({'; '.join(changes)}): give --overwrite, or another --out"
        )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings as one, by their names one after the other: attack epsilon."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= {f"{name} {inner}": each for inner, each in _flat(value).items()}
        else:
            found[name] = value
    return found


def _shown(value: Any) -> str:
    return radius_name(value) if isinstance(value, float) else "none" if value is None else str(value)
