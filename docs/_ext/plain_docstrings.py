"""Docstrings are plain text with ``code`` and :roles:, not reStructuredText: |x|, *size and x_ mean themselves."""

import re
from typing import Any

#: What keeps its meaning: ``code``, :role:`target`, and lines of examples.
_KEPT = re.compile(r"(``.*?``|:[\w:]+:`.*?`)")
_SPECIAL = re.compile(r"([|*`]|(?<=\w)_(?!\w))")


def escape(lines: list[str]) -> list[str]:
    """The lines with a backslash before every character that would be markup by accident."""
    result = []
    in_example = False
    for line in lines:
        in_example = line.lstrip().startswith(">>>") or (in_example and bool(line.strip()))
        if in_example:
            result.append(line)
            continue
        parts = _KEPT.split(line)
        result.append("".join(part if index % 2 else _SPECIAL.sub(r"\\\1", part) for index, part in enumerate(parts)))
    return result


_escaped: dict[str, list[str]] = {}


def _before_napoleon(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    _escaped[name] = escape(lines)
    lines[:] = _escaped[name]


def _after_napoleon(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    # Of "F in the layout of nn.Conv2d: (c_out, ...)" napoleon makes a type and a description; ours are sentences.
    if what in ("property", "attribute"):
        lines[:] = _escaped[name]


def _skip_fields_of_tuples(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    # Python describes the fields of a NamedTuple by their number alone; what they mean stands in the class.
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx; napoleon makes its sections of the escaped lines."""
    app.connect("autodoc-process-docstring", _before_napoleon, priority=100)
    app.connect("autodoc-skip-member", _skip_fields_of_tuples)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=900)
    return {"parallel_read_safe": True}
