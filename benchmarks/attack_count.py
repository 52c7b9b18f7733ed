"""Number of attack steps in the records, and of certificates that they broke.

A step is one image shown to the network once, counted by the network that is attacked: a gradient step of PGD, a query
of AutoAttack, a neighbour of the rounding search, a step or a bisection of the search for the nearest boundary. Records
that were made before steps were counted are listed, and add nothing.

    python benchmarks/attack_count.py [FOLDER ...]

The claim: at least a million steps over digits and CIFAR-10, at 0.99 and at the whole of each radius, and no violation.
"""

import sys
from pathlib import Path
from typing import Any

from skewconv.records import RecordError, read_record

RECORDS = Path(__file__).parent / "records"


def attack_records(folders: list[Path]) -> list[tuple[str, dict[str, Any]]]:
    """(name, results) of every attack and every search for boundaries in these folders."""
    found = []
    for path in sorted(path for folder in folders for path in folder.rglob("*.json")):
        try:
            record = read_record(path)
        except RecordError:
            continue
        if record["kind"] in ("attack", "tightness"):
            found.append((path.stem, {"kind": record["kind"], **record["results"]}))
    return found


def row(name: str, results: dict[str, Any]) -> tuple[str, str, str, int, int]:
    """(record, attack, share of the radius, steps, certificates broken)."""
    steps = int(results.get("steps", 0))
    if results["kind"] == "tightness":
        return name, f"nearest boundary, median {results['median']:.3f} radii", "beyond", steps, len(results["below"])
    attack = results["attack"]
    climbed = attack.get("arithmetic", "model")
    share = f"{attack['fraction']:g}" if attack["epsilon"] is None else f"at {attack['epsilon']:g}"
    what = "float64 program" if climbed == "float64" else "model"
    return name, f"{attack['kind']} on the {what}", share, steps, len(results["violations"])


def total(rows: list[tuple[str, str, str, int, int]]) -> str:
    """The sum, in a sentence."""
    steps, broken = sum(each[3] for each in rows), sum(each[4] for each in rows)
    return f"{steps:,} attack steps in {sum(each[3] > 0 for each in rows)} records, {broken} certificates broken"


def main(folders: list[Path]) -> int:
    """Print the table; 1 if a certificate was broken."""
    rows = [row(*each) for each in attack_records(folders)]
    wide = max((len(each[0]) for each in rows), default=6)
    print(f"{'record':{wide}}  {'attack':40}  {'radius':>6}  {'steps':>11}  broken")
    for name, attack, share, steps, broken in rows:
        print(f"{name:{wide}}  {attack:40}  {share:>6}  {f'{steps:,}' if steps else 'not counted':>11}  {broken}")
    print(total(rows))
    return 1 if any(each[4] for each in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main([Path(word) for word in sys.argv[1:]] or [RECORDS]))
