"""How the figures of a network are shown to a person."""

from collections.abc import Sequence
from typing import Any

from skewconv.commands import print_table


def figure_rows(title: str, results: dict[str, Any]) -> list[tuple[str, str]]:
    """Images, clean and certified accuracy, and the bound they rest on: the same words in every command.

    Args:
        title: of the images, in words.
        results: of a record.
    """
    rows = [(title, f"{results['images']:,}"), ("clean accuracy", f"{results['clean']:.2%}")]
    for radius, share in results.get("certified", {}).items():
        rows.append((f"certified accuracy at l2 radius {radius}", _share(share, results, radius)))
    if "lipschitz_upper_bound" in results:
        rows.append(("mean certified radius", f"{results['mean_radius']:.4f}"))
        rows.append(("proven Lipschitz bound, pixels to logits", f"{results['lipschitz_upper_bound']:.6f}"))
    if "attacked" in results:
        rows.append((f"accuracy under PGD, of {results['attacked_images']:,} images", f"{results['attacked']:.2%}"))
    return rows


def _share(share: float, results: dict[str, Any], radius: str) -> str:
    """A certified accuracy, and beside it that of the program in float32 where the record has one."""
    other = results.get("certified_float32", {}).get(radius)
    return f"{share:.2%}" if other is None else f"{share:.2%}  float32 {other:.2%}"


def print_figures(title: str, images: str, results: dict[str, Any], more: Sequence[tuple[str, str]] = ()) -> None:
    """A table of them, and of further rows."""
    print_table(title, [*figure_rows(images, results), *more])
