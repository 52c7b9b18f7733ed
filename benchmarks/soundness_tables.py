"""The tables of docs/certification.md: attack steps counted, and sound certificates beside the customary ones."""

import decimal
import math
from typing import Any

from attack_count import RECORDS, attack_records, row, total

from skewconv.records import read_record

# The runs that were attacked and compared, by the ends of the names of their records.
RUNS = {"digits": "digits", "cifar10-1epoch": "CIFAR-10, one epoch"}
_TWO_DIGITS_UP = decimal.Context(prec=2, rounding=decimal.ROUND_CEILING)
_NAMES = {"pgd": "PGD", "autoattack": "AutoAttack", "rounding": "rounding search"}


def attack_steps() -> str:
    """Every counted attack on the two runs, and the sum over all records."""
    lines = [
        "| run | attack | climbing | share of each radius | images | steps | broken | float32 alone flips |",
        "| --- " * 8 + "|",
    ]
    found = attack_records([RECORDS])
    for run, title in RUNS.items():
        for name, results in found:
            if name.endswith(f"-{run}") and results.get("steps"):
                lines.append(_attack_row(title, name, results))
    sentence = total([row(*each) for each in found])
    return "\n".join([*lines, "", f"Together: {sentence}."])


def _attack_row(run: str, name: str, results: dict[str, Any]) -> str:
    steps, images = f"{results['steps']:,}", results["images"]
    if results["kind"] == "tightness":
        quotient = f"nearest boundary (median {results['median']:.3f} radii away, least {results['least']:.3f})"
        return f"| {run} | {quotient} | model | beyond | {images} | {steps} | {len(results['below'])} | |"
    attack = results["attack"]
    climbed = "float64 program" if attack.get("arithmetic") == "float64" else "model"
    broken, flips = len(results["violations"]), len(results["flips"])
    what = _NAMES[attack["kind"]]
    return f"| {run} | {what} | {climbed} | {attack['fraction']:g} | {images} | {steps} | {broken} | {flips} |"


def ball_proofs() -> str:
    """What the check in ball arithmetic proved of the two runs."""
    lines = [
        "| run | certificates proven | Lipschitz bound | error of the logits "
        "| smallest 1 - claimed radius / proven radius |",
        "| --- " * 5 + "|",
    ]
    for run, title in RUNS.items():
        found = read_record(RECORDS / f"check-ball-{run}.json")["results"]
        proven = found["checked"] if found["sound"] else f"not all: {len(found['problems'])} problems"
        bound, error = (
            f"{math.ceil(found['lipschitz_upper_bound'] * 1e9) / 1e9:.9f}",
            _TWO_DIGITS_UP.create_decimal_from_float(found["error_of_logits"]),
        )
        lines.append(f"| {title} | {proven} | {bound} | {error:.1e} | {1 - found['largest_ratio']:.1e} |")
    return "\n".join(lines)


def sound_beside_customary() -> str:
    """Certified accuracy by proofs and by custom, their difference, and the processor seconds of both."""
    files = {title: RECORDS / f"soundness-{run}.json" for run, title in RUNS.items()}
    records = {title: read_record(file)["results"] for title, file in files.items() if file.exists()}
    radii = [radius for radius in next(iter(records.values()))["certified"]["sound"] if radius != "0"]
    lines = [
        "| run, certificates | " + " | ".join(f"at {radius}, %" for radius in radii) + " | preparing, s | images, s |",
        "| --- " * (3 + len(radii)) + "|",
    ]
    for title, found in records.items():
        of = f"{title}, {found['images']:,} images"
        for way in ("sound", "customary", "sound in float32"):
            shares = " | ".join(f"{100 * found['certified'][way][radius]:.2f}" for radius in radii)
            times = [found[part].get(way) for part in ("preparing_seconds", "image_seconds")]
            spent = " | ".join("" if value is None else f"{value:.2f}" for value in times)
            lines.append(f"| {of}: {way} | {shares} | {spent} |")
        lost = [100 * (found["certified"]["customary"][r] - found["certified"]["sound"][r]) for r in radii]
        points = " | ".join(f"{value:.2f}" for value in lost)
        lines.append(f"| {of}: points lost by proof | {points} | | |")
    sentences = [
        f"Of {title}, {found['unproven']} of {found['images']:,} customary radii are above what is proven, by up to "
        f"{found['largest_excess']:.1g}."
        for title, found in records.items()
    ]
    return "\n".join([*lines, "", *sentences])
