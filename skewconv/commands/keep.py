"""Results of an earlier command are not replaced in silence by those of other settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    different = {name: now for name, now in settings.items() if before.get(name) != now}
    if different:
        changes = [f"{name} was {before.get(name)} and is now {now}" for name, now in different.items()]
        raise ArgumentError(
            f"{path} holds the results of other settings ({'; '.join(changes)}): give --overwrite, or another --out"
        )
