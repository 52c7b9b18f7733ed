"""The record of an audit as a table for a person: the main columns in 80, or all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from skewconv.certify.audit import METHODS
from skewconv.models.table import format_table

_WIDTH = 80
_NARROW = ("layer", "type", "proven", "measured", "singular", "norm", "degree", "error")
_WIDE = (
    *("layer", "type", "Lipschitz <=", "measured >=", "singular values", "norm: symbol", "gram", "fantastic-four"),
    *("estimate", "degree", "truncation error"),
)
_EXPLAINED = """
proven    an upper bound of the layer's Lipschitz constant, for every input
measured  the largest stretch that a search found: a lower bound of the same
singular  the least and the largest singular value; an orthogonal layer has 1
norm      the least proven bound of the filter's norm, before its exponential
degree    of the polynomial for that exponential, and its proven error
--wide shows the bounds of the norm by every method."""
_EXPLAINED_WIDE = """
symbol          the largest norm of the filter's Fourier symbol on a grid, over cosines that cover
                what lies between its points (Riesz); the sharpest bound, for every image size
gram            the same from powers of Gram matrices alone (Delattre et al. 2023), at most 1% above
fantastic-four  the least norm of four reshapes of the filter times the root of its taps (Singla
                and Feizi 2021); cheap and loose: it is what filters are scaled by in training
estimate        power iteration at this image size: a lower bound of the norm"""


def format_audit(record: Mapping[str, Any], *, wide: bool = False) -> str:
    """The record of an audit as text: at most 80 columns, or all that is known of each layer if wide."""
    layers, network = record["results"]["layers"], record["results"]["network"]
    if wide:
        bounds = [_number(network[f"lipschitz_{which}_bound"]) for which in ("upper", "lower")]
        total = ("network", network["type"], *bounds, *("",) * (len(_WIDE) - 4))
        return format_table(_WIDE, [_all_cells(row) for row in layers], total, left=2) + "\n" + _EXPLAINED_WIDE
    rows = [_main_cells(row) for row in (*layers, {**network, "name": "network"})]
    *fitted, total = _fitted(rows)
    return format_table(_NARROW, fitted, total, left=2) + "\n" + _EXPLAINED


def _main_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    norms = row.get("norm_upper_bounds", {}).values()
    return (
        row["name"],
        row["type"],
        _number(row["lipschitz_upper_bound"], 5),
        _number(row["lipschitz_lower_bound"], 5),
        _range(row, 4, "-"),
        _number(min(norms, default=None), 5),
        str(row.get("degree", "")),
        _error(row),
    )


def _all_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    norms = row.get("norm_upper_bounds", {})
    return (
        row["name"],
        row["type"],
        _number(row["lipschitz_upper_bound"]),
        _number(row["lipschitz_lower_bound"]),
        _range(row, 6, " to "),
        *(_number(norms.get(method)) for method in METHODS),
        _number(row.get("norm_estimate")),
        str(row.get("degree", "")),
        _error(row),
    )


def _fitted(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows with names and types cut so that the table has at most 80 columns: names lose their beginning."""
    widths = [max(map(len, column)) for column in zip(_NARROW, *rows, strict=True)]
    room = _WIDTH - sum(widths[2:]) - 2 * (len(widths) - 1)
    kind = min(widths[1], max(8, room - widths[0]))
    name = min(widths[0], max(8, room - kind))
    return [(_end(row[0], name), _start(row[1], kind), *row[2:]) for row in rows]


def _start(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _end(text: str, width: int) -> str:
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def _range(row: Mapping[str, Any], digits: int, between: str) -> str:
    values = [row.get(f"{which}_singular_value") for which in ("smallest", "largest")]
    if None in values:
        return ""
    texts = [_number(value, digits) for value in values]
    return texts[0] if texts[0] == texts[1] else between.join(texts)


def _error(row: Mapping[str, Any]) -> str:
    return f"{row['truncation_error']:.1e}" if "truncation_error" in row else ""


def _number(value: float | None, digits: int = 6) -> str:
    return "" if value is None else f"{value:.{digits}g}"
