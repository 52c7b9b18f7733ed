"""The tables of docs/performance.md, made from benchmarks/records: no figure in them is typed by hand.

Run: python benchmarks/tables.py  (writes them between the markers of docs/performance.md)
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
SUITES = ("training-5", "training-20", "inference-zeros", "inference-circular", "resnet", "recompute")


def results(name: str) -> dict[str, Any]:
    """The results of a record."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "records" / f"{name}.json").read_text())["results"]
    return found


def claims() -> str:
    """Every target with what was measured."""
    lines = ["| what | measured | target | |", "| --- | --- | --- | --- |"]
    for suite in SUITES:
        for claim in results(suite)["claims"]:
            verdict = "met" if claim["met"] else "**missed**"
            lines.append(f"| {claim['what']} | {claim['figure']:.2f} | {claim['target']} | {verdict} |")
    plan = results("plan")
    share, worst = plan["within"] / plan["shapes"], max(row["ratio"] for row in plan["rows"])
    verdict = "met" if worst <= plan["claim"] else "**missed**"
    lines.append(
        f"| auto / best engine forced, worst of {plan['shapes']} shapes ({share:.1%} are within {plan['claim']}) "
        f"| {worst:.2f} | <= {plan['claim']} | {verdict} |"
    )
    return "\n".join(lines)


def layers() -> str:
    """One layer of each kind."""
    lines = ["| layer | ms | peak MiB | proven error | G multiply-adds |", "| --- | --- | --- | --- | --- |"]
    for entry in results("layers")["entries"]:
        error = "" if entry["proven_error"] is None else f"{entry['proven_error']:.1e}"
        lines.append(
            f"| {entry['name']} | {entry['seconds'] * 1e3:.1f} | {entry['peak_bytes'] / 2**20:.0f} | {error} "
            f"| {entry['multiply_adds'] / 1e9:.1f} |"
        )
    return "\n".join(lines)


def time_spent() -> str:
    """A training step, layer by layer."""
    rows = results("time-spent")["layers"]
    total = sum(row["filter"] + row["rest"] for row in rows)
    lines = ["| layer | filter, ms | rest, ms | share |", "| --- | --- | --- | --- |"]
    for row in rows:
        share = (row["filter"] + row["rest"]) / total
        if share >= 0.005:
            lines.append(f"| {row['layer']} | {row['filter']:.1f} | {row['rest']:.1f} | {share:.0%} |")
    return "\n".join(lines)


TABLES = {"claims": claims, "layers": layers, "time-spent": time_spent}


def render(page: str) -> str:
    """The page with every marked table made anew."""
    for name, table in TABLES.items():
        marked = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        page = re.sub(marked, lambda m, table=table: m[1] + table() + "\n" + m[2], page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
    print(PAGE.read_text())
