"""How the figures of a network are shown to a person."""

from typing import Any

from skewconv.commands import print_table


def print_figures(title: str, results: dict[str, Any]) -> None:
    """Clean, certified and attacked accuracy, and the bound they rest on."""
    images = {"test": "test images", "validation": "validation: held-out training images"}[results["split"]]
    rows = [(images, f"{results['images']:,}"), ("clean accuracy", f"{results['clean']:.2%}")]
    for radius, share in results.get("certified", {}).items():
        rows.append((f"certified accuracy at l2 radius {radius}", f"{share:.2%}"))
    if "lipschitz_upper_bound" in results:
        rows.append(("mean certified radius", f"{results['mean_radius']:.4f}"))
        rows.append(("proven Lipschitz bound, pixels to logits", f"{results['lipschitz_upper_bound']:.6f}"))
    if "attacked" in results:
        rows.append((f"accuracy under PGD, of {results['attacked_images']:,} images", f"{results['attacked']:.2%}"))
    print_table(title, rows)
