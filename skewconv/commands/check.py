"""skewconv certify --check: certificates of a file held against the weights, in float64 or in ball arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skewconv.certify import check_certificates, check_in_balls
from skewconv.certify.certificates import read_table, table_in
from skewconv.commands import print_json, print_table
from skewconv.config import to_dict
from skewconv.errors import ArgumentError
from skewconv.progress import Progress
from skewconv.records import make_record
from skewconv.train.judged import Judged
from skewconv.train.run import Run

_LINES = 20


def check_in_float64(run: Run, judged: Judged, file: Path, batch_size: int, progress: Progress, as_json: bool) -> int:
    """Derive every radius anew in float64; 1 if a certificate does not hold."""
    images, labels, _ = judged.tensors()
    progress.start("checking", "images")
    report = check_certificates(file, run.model, images, labels, batch_size=batch_size, progress=progress)
    progress.close()
    results = {
        "arithmetic": "float64",
        "sound": report.sound,
        "checked": report.checked,
        "largest_ratio": report.largest_ratio,
        "lipschitz_upper_bound": report.lipschitz,
        "problems": list(report.problems),
    }
    rows = [
        ("certificates checked", f"{report.checked:,} of {len(judged):,} images"),
        ("largest radius claimed / derived", f"{report.largest_ratio:.9f}"),
    ]
    return _show(run, f"derived again in float64: {file}", results, rows, as_json)


def check_by_balls(
    run: Run,
    judged: Judged,
    file: Path,
    count: int | None,
    chosen: Sequence[int],
    progress: Progress,
    as_json: bool,
) -> int:
    """Prove the chosen radii, or so many of them, in ball arithmetic; 1 if a certificate is not proven."""
    there = sorted(read_table(table_in(file))["index"].tolist())
    if count is not None and count > len(there):
        raise ArgumentError(f"--images is {count}: there are {len(there)} certificates")
    some = there if count is None else [there[place * len(there) // count] for place in range(count)]
    images, labels, _ = judged.tensors()
    progress.start("proving in ball arithmetic")
    report = check_in_balls(file, run.model, images, labels, list(chosen) or some)
    progress.close()
    results = {
        "arithmetic": "ball",
        "sound": report.sound,
        "checked": report.checked,
        "largest_ratio": report.largest_ratio,
        "lipschitz_upper_bound": report.lipschitz,
        "error_of_logits": report.error,
        "layers": [asdict(line) for line in report.layers],
        "problems": list(report.problems),
    }
    rows = [("certificates checked", f"{report.checked:,}")]
    for line in report.layers:
        if line.norm is not None:
            proven = f"norm <= {_up(line.norm)}, gain <= {_up(line.lipschitz)}"
            rows.append((f"{line.name} ({line.kind})", proven))
    rows += [
        ("proven Lipschitz bound, pixels to logits", _up(report.lipschitz)),
        ("error of the logits, at most", f"{report.error:.1e}"),
        ("least of 1 - radius claimed / proven", f"{1 - report.largest_ratio:.1e}"),
    ]
    return _show(run, f"ball arithmetic: {file}", results, rows, as_json)


def _up(value: float) -> str:
    """Nine decimals, rounded up."""
    return f"{math.ceil(value * 1e9) / 1e9:.9f}"


def _show(run: Run, title: str, results: dict[str, Any], rows: list[tuple[str, str]], as_json: bool) -> int:
    problems = results["problems"]
    if as_json:
        print_json(make_record("check", config=to_dict(run.config), seed=run.config.seed, results=results))
    else:
        verdict = "every certificate holds" if results["sound"] else f"{len(problems)} problems"
        print_table(title, [*rows, ("verdict", verdict)])
        print("\n".join(problems[:_LINES]), end="\n" if problems else "")
        if len(problems) > _LINES:
            print(f"and {len(problems) - _LINES} more: --json lists them all")
    return 0 if results["sound"] else 1
