"""The tables of the README, of the pages on performance and certification and of tutorial 10, made from the records.

No figure is typed by hand.

Run: python benchmarks/tables.py  (writes them between the markers of the pages)
"""

import decimal
import json
import math
import re
import statistics
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attack_count
import bench_plan
from attack_count import RECORDS

from skewconv.records import read_record

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("performance.md", "certification.md", "export.md")),
    ROOT / "examples" / "10_hkr_loss.py",
)
# Certifying the network itself, and the one frozen at 1e-3.
CERTIFY_TARGETS = {"": 3, "-fast": 1.5}
LOST_TARGET = 0.02
_NETWORKS = ("training-5", "training-20", "inference-zeros", "inference-circular")
SUITES = (*_NETWORKS, "beside-bcop", "layers")
# The runs that were attacked and compared, by the ends of the names of their records.
RUNS = {"digits": "digits", "cifar10": "CIFAR-10"}
_TWO_DIGITS_UP = decimal.Context(prec=2, rounding=decimal.ROUND_CEILING)
_NAMES = {"pgd": "PGD", "autoattack": "AutoAttack", "rounding": "rounding search"}


def results(name: str) -> dict[str, Any]:
    """The results of a record."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "records" / f"{name}.json").read_text())["results"]
    return found


def on_the_xeon(suite: str) -> dict[str, float]:
    """Claim -> what was measured on the other kind of machine, at an earlier commit."""
    if not (RECORDS / "xeon" / f"{suite}.json").exists():
        return {}
    return {claim["what"]: claim["figure"] for claim in results(f"xeon/{suite}")["claims"]}


def claims() -> str:
    """Every target with what was measured."""
    lines = ["| what | measured | Xeon | target | |", "| --- " * 5 + "|"]
    for suite in filter(lambda name: (RECORDS / f"{name}.json").exists(), SUITES):
        others = on_the_xeon(suite)
        for claim in results(suite)["claims"]:
            other = f"{others[claim['what']]:.2f}" if claim["what"] in others else ""
            cells = [_cell(claim["what"]), f"{claim['figure']:.2f}", other, claim["target"]]
            lines.append(f"| {' | '.join(cells)} | {'met' if claim['met'] else '**missed**'} |")
    for name, which in (("plan", "the grid"), ("plan-random", "shapes drawn at random")):
        record = results(name)
        found = [ratio for ratio, _, _ in bench_plan.ratios(record["rows"], record.get("onednn", False))]
        share, target = sum(ratio <= record["claim"] for ratio in found) / len(found), record["claim"]
        lines.append(
            f"| engine planned / fastest engine, {which}, worst of {len(found)} ({share:.1%} are within {target}) "
            f"| {max(found):.2f} | | <= {target} | {'met' if max(found) <= target else '**missed**'} |"
        )
    for name, which in (
        ("certify", "width 32, random weights"),
        ("certify-cifar10", "the shipped network"),
    ):
        for kind, target in CERTIFY_TARGETS.items():
            if not (RECORDS / f"{name}{kind}.json").exists():
                continue
            record = read_record(RECORDS / f"{name}{kind}.json")
            found, here = record["results"], "EPYC" in record["machine"]["cpu"]
            verdict = "met" if found["ratio"] <= target else "**missed**"
            how = "certifying" if not kind else "certifying with --fast"
            what = f"{how} {found['images']:,} images / plain float32 evaluation, LipConvnet-5 ({which})"
            ratio = f"{found['ratio']:.2f} |" if here else f"| {found['ratio']:.2f}"
            lines.append(f"| {what} | {ratio} | <= {target} | {verdict} |")
    if (RECORDS / "frozen-tolerance.json").exists():
        lost = max(
            max(row["points_lost"].values()) for row in results("frozen-tolerance")["rows"] if row["tolerance"] == 1e-3
        )
        verdict = "met" if lost <= LOST_TARGET else "**missed**"
        lines.append(
            f"| certified accuracy lost by freezing at 1e-3, points | | {lost:.2f} | <= {LOST_TARGET} | {verdict} |"
        )
    return "\n".join(lines)


def tolerance() -> str:
    """Certified accuracy of one run, frozen at each tolerance."""
    if not (RECORDS / "frozen-tolerance.json").exists():
        return "Not measured yet: `python benchmarks/bench_tolerance.py RUN`."
    found = results("frozen-tolerance")
    radii = list(found["whole"]["certified"])
    lines = [
        "| network certified | products, by layer | clean | "
        + " | ".join(f"certified at {r}" for r in radii)
        + " | time |",
        "| --- " * (4 + len(radii)) + "|",
    ]
    for row in [{"tolerance": None, **found["whole"]}, *found["rows"]]:
        name = "as it was trained" if row["tolerance"] is None else f"frozen at {row['tolerance']:g}"
        figures = " | ".join(f"{row['certified'][r]:.2%}" for r in radii)
        share = row["cpu_seconds"] / found["whole"]["cpu_seconds"]
        lines.append(f"| {name} | {', '.join(row['products'])} | {row['clean']:.2%} | {figures} | {share:.2f} |")
    return "\n".join(lines)


def winograd() -> str:
    """F(4x4, 3x3) against the convolution on three processors, and the two libraries for its products."""
    records = {"Xeon": "winograd", "EPYC, AVX2": "winograd-avx2", "EPYC, AVX-512": "winograd-onednn"}
    heads = ["channels", "side", *(f"{name}: convolution / Winograd" for name in records)]
    heads += ["EPYC, AVX-512: MKL / oneDNN", "largest error", "of a convolution"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for rows in zip(*(results(name)["rows"] for name in records.values()), strict=True):
        figures = [row["convolution_seconds"] / row["winograd_seconds"] for row in rows]
        figures.append(rows[-1]["torch_products_seconds"] / rows[-1]["products_seconds"])
        errors = [max(row[f"{name}_error"] for row in rows) for name in ("winograd", "convolution")]
        cells = [str(rows[0][name]) for name in ("channels", "side")]
        cells += [*(f"{figure:.2f}" for figure in figures), *(f"{error:.1e}" for error in errors)]
        lines.append(f"| {' | '.join(cells)} |")
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


def strided() -> str:
    """Layers with a large stride, and the claims about them."""
    found = results("strided")
    lines = ["| layer | ms | parameters |", "| --- | --- | --- |"]
    lines += [f"| {row['name']} | {row['seconds'] * 1e3:.1f} | {row['parameters']:,} |" for row in found["rows"]]
    return "\n".join([*lines, "", *claim_rows(found["claims"])])


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


def attacked_exports() -> str:
    """Attempts to break the radii of exported files."""
    lines = ["| run | weights | images | steps of PGD | mean distance moved | classes changed |", "| --- " * 6 + "|"]
    for path in sorted((ROOT / "benchmarks" / "records").glob("attack-export-*.json")):
        name, found = path.stem.removeprefix("attack-export-"), results(path.stem)
        counts = f"{found['images']:,} | {found['steps']:,} | {found['mean_distance']:.3f} | {len(found['flips'])}"
        lines.append(f"| {RUNS.get(name, name)} | {found['weights']} | {counts} |")
    return "\n".join(lines)


def export_sizes() -> str:
    """The shipped network as a file, with several options."""
    head = "options | MB | ms, one picture | ms a picture, 32 at once | largest difference of a logit | median radius"
    lines = [f"| {head} |", "| --- " * 6 + "|"]
    for name, row in results("export-sizes")["rows"].items():
        one, many = (1e3 * row["processor_seconds"][batch] for batch in ("1", "32"))
        figures = f"{one:.2f} | {many:.2f} | {row['largest_difference']:.4f} | {row['median_radius']:.4f}"
        lines.append(f"| {name} | {row['bytes'] / 1e6:.1f} | {figures} |")
    return "\n".join(lines)


def exported() -> str:
    """Eager, frozen, compiled and exported, side by side, for each width on record."""
    widths = sorted(int(path.stem.rpartition("-")[2]) for path in RECORDS.glob("export-speed-*.json"))
    return "\n\n".join(_exported(width) for width in widths)


def _exported(width: int) -> str:
    found = results(f"export-speed-{width}")
    lines = [
        f"Width {width}:",
        "",
        "| padding | program | MB | first call, s | batch 1, ms | images/s at batch 128 | proven error |",
        "| --- " * 7 + "|",
    ]
    for row in found["rows"]:
        figures = (
            f"{row['bytes'] / 1e6:.1f}",
            f"{row['first_call_seconds']:.1f}",
            f"{row['latency_seconds'] * 1e3:.2f}",
            f"{row['images_per_second']:,.0f}",
            f"{row['proven_error']:.1e}",
        )
        lines.append(f"| {row['padding']} | {row['name']} | {' | '.join(figures)} |")
    return "\n".join([*lines, "", *claim_rows(found["claims"])])


def _cell(text: str) -> str:
    """Text for a cell, in which a bar would end it."""
    return text.replace("|", "\\|")


def claim_rows(claims: list[dict[str, Any]]) -> list[str]:
    """Each claim of a record with what was measured."""
    lines = ["| what | measured | target | |", "| --- | --- | --- | --- |"]
    for claim in claims:
        verdict = "met" if claim["met"] else "**missed**"
        lines.append(f"| {_cell(claim['what'])} | {claim['figure']:.2f} | {claim['target']} | {verdict} |")
    return lines


def ratios() -> str:
    """The headlines: how much faster than a literal Algorithm 1, and the command that measures it."""
    lines = ["| times as fast as Algorithm 1 | AMD EPYC | Intel Xeon | goal | measured by |", "| --- " * 5 + "|"]
    for suite in ("training-5", "training-20", "inference-zeros", "inference-circular"):
        for claim in results(suite)["claims"]:
            if "Algorithm 1 / " not in claim["what"]:
                continue
            what = claim["what"].replace(", Algorithm 1 / skewconv", "").replace(", Algorithm 1 / frozen", ", frozen")
            figures = f"{claim['figure']:.1f} | {on_the_xeon(suite)[claim['what']]:.1f}"
            lines.append(f"| {what} | {figures} | {claim['target'].strip('>= ')} | `skewconv bench {suite}` |")
    return "\n".join(lines)


def beside_bcop() -> str:
    """Frozen SOC against frozen BCOP, both paddings."""
    lines = ["| frozen LipConvnet-5 | proven error | ms a batch | SOC / BCOP | record |", "| --- " * 5 + "|"]
    bcop = None
    for padding in ("circular", "zeros"):
        entries = {entry["name"]: entry for entry in results(f"inference-{padding}")["entries"]}
        bcop = entries.get("BCOP, frozen", bcop)
        for name, kind in (
            (f"SOC, {padding}", "skewconv, frozen"),
            (f"SOC, {padding}, at 1e-3", "skewconv, frozen at 1e-3"),
        ):
            seconds, error = entries[kind]["seconds"], entries[kind]["proven_error"]
            ratio = f"{seconds / bcop['seconds']:.2f}"
            lines.append(f"| {name} | {error:.1e} | {seconds * 1e3:.0f} | {ratio} | `inference-{padding}.json` |")
        if "BCOP, frozen" in entries:
            record = f"`inference-{padding}.json`"
            lines.append(f"| BCOP, always circular | no series | {bcop['seconds'] * 1e3:.0f} | 1 | {record} |")
    return "\n".join(lines)


def trained() -> str:
    """The runs kept on record, and the network that comes with the package."""
    runs = {
        "skewconv train": RECORDS / "digits.json",
        "skewconv evaluate cifar10": ROOT / "skewconv" / "shipped" / "cifar10.json",
    }
    found = {command: json.loads(path.read_text())["results"] for command, path in runs.items() if path.exists()}
    radii = list(found["skewconv train"]["certified"])
    lines = [
        "| command | training | test images | clean | " + " | ".join(f"certified at {r}" for r in radii) + " |",
        "| --- " * (4 + len(radii)) + "|",
    ]
    for command, each in found.items():
        figures = " | ".join(f"{each['certified'][r]:.2%}" for r in radii)
        lines.append(f"| `{command}` | {_training_time(each)} | {each['images']:,} | {each['clean']:.2%} | {figures} |")
    return "\n".join(lines)


def _training_time(found: Mapping[str, Any]) -> str:
    """Minutes and seconds."""
    run = found.get("before_rounding", found)
    minutes, seconds = divmod(round(run.get("seconds") or run["wall_seconds"]), 60)
    return f"{minutes}:{seconds:02d}"


def attacked() -> str:
    """Attempts to break certificates at the whole of each radius."""
    lines = ["| run | attack, l2 | test images | attack steps | certificates broken |", "| --- " * 5 + "|"]
    for run, title in RUNS.items():
        for kind in ("pgd-1", "autoattack-1", "rounding-float64-1", "rounding-model-1"):
            if not (ROOT / "benchmarks" / "records" / f"attack-{kind}-{run}.json").exists():
                continue
            found = results(f"attack-{kind}-{run}")
            attack, broken = found["attack"], len(found["violations"])
            ways = {
                "pgd": f"PGD, {attack.get('steps')} steps, {attack.get('restarts')} restarts",
                "autoattack": f"AutoAttack, {attack.get('queries')} queries of Square",
                "rounding": f"rounding search, {'float64' if attack['arithmetic'] == 'float64' else 'float32'}",
            }
            lines.append(f"| {title} | {ways[attack['kind']]} | {found['images']:,} | {found['steps']:,} | {broken} |")
    return "\n".join(lines)


def attack_steps() -> str:
    """Every counted attack on the two runs, and the sum over all records."""
    lines = [
        "| run | attack | climbing | share of each radius | images | steps | broken | float32 alone flips |",
        "| --- " * 8 + "|",
    ]
    found = attack_count.attack_records([RECORDS])
    for run, title in RUNS.items():
        for name, results in found:
            if name.endswith(f"-{run}") and results.get("steps"):
                lines.append(_attack_row(title, name, results))
    sentence = attack_count.total([attack_count.row(*each) for each in found])
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
    """The results of the check in ball arithmetic on the two runs."""
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


def wasserstein() -> str:
    """The race for known distances, as comments of a tutorial: who comes nearer, at what cost, and all figures."""
    record = read_record(RECORDS / "wasserstein.json")
    rows, version = record["results"]["rows"], record["config"]["deel-torchlip"]
    ahead: dict[str, list[str]] = {"ours": [], "theirs": [], "neither": []}
    costs, rule = [], ("=" * 15, "=" * 8, *("=" * 19,) * 3)
    lines = [rule, ("pair", "network", "skewconv", "deel-torchlip", "the same, undivided"), rule]
    for us, them in zip(rows[::2], rows[1::2], strict=True):
        mine, other = chosen_runs(us), chosen_runs(them)
        ranges = [_range(mine, "found"), _range(other, "found"), _range(other, "undivided")]
        verdict = "ours" if ranges[0][0] > ranges[1][1] else "theirs" if ranges[1][0] > ranges[0][1] else "neither"
        ahead[verdict].append(f"{us['pair']}: {us['shape']}")
        costs.append(_median_seconds(mine) / _median_seconds(other))
        lines.append((us["pair"], us["shape"], *(f"{low:.4f} to {high:.4f}" for low, high in ranges)))
    told = {who: f"{len(where)}{' (' + '; '.join(where) + ')' if where else ''}" for who, where in ahead.items()}
    runs = [(rate, run) for row in rows[1::2] for rate, each in row["runs"].items() for run in each]
    lost = [rate for rate, run in runs if not math.isfinite(run["training"])]
    words = (
        f"Of {len(costs)} comparisons, every seed of skewconv comes nearer than any of deel-torchlip {version} in "
        f"{told['ours']}, and the other way round in {told['theirs']}; in {told['neither']} the seeds overlap. All "
        f"make equally many steps, which is not equal time: one of ours takes {min(costs):.1f} to {max(costs):.1f} "
        f"times the processor time of theirs, and longer training may close a small gap. Of their {len(runs)} runs "
        f"{len(lost)} diverged{', at a rate of ' + ' or '.join(sorted(set(lost), key=float)) if lost else ''}."
    )
    drawn = ["  ".join(f"{cell:{len(bar)}}" for cell, bar in zip(line, rule, strict=True)) for line in (*lines, rule)]
    text = ["", *textwrap.wrap(words, 118, break_on_hyphens=False), "", *drawn, ""]
    return "\n".join(f"# {line}".rstrip() for line in text)


def chosen_runs(row: dict[str, Any]) -> list[dict[str, float]]:
    """The runs of a row of the race at the rate that did best on training points."""
    runs: list[dict[str, float]] = row["runs"][f"{row['rate']:g}"]
    return runs


def _range(runs: list[dict[str, float]], name: str) -> tuple[float, float]:
    return min(run[name] for run in runs), max(run[name] for run in runs)


def _median_seconds(runs: list[dict[str, float]]) -> float:
    return statistics.median(run["seconds_a_step"] for run in runs)


TABLES = {
    "ratios": ratios,
    "beside-bcop": beside_bcop,
    "trained": trained,
    "attacked": attacked,
    "attack-steps": attack_steps,
    "ball-proofs": ball_proofs,
    "sound-beside-customary": sound_beside_customary,
    "claims": claims,
    "layers": layers,
    "strided": strided,
    "time-spent": time_spent,
    "frozen-tolerance": tolerance,
    "winograd": winograd,
    "exported": exported,
    "attacked-exports": attacked_exports,
    "export-sizes": export_sizes,
    "wasserstein": wasserstein,
}


def render(page: str, tables: Mapping[str, Callable[[], str]] = TABLES) -> str:
    """The page with every marked table made anew."""
    for name, table in tables.items():
        if f"<!-- {name} -->" not in page:
            continue
        # In a tutorial the markers are comments of its text.
        marked = rf"(<!-- {name} -->\n).*?((?:# \.\. )?<!-- end -->)"
        page = re.sub(marked, lambda m, table=table: m[1] + table() + "\n" + m[2], page, flags=re.DOTALL)
    return page


def write_pages() -> None:
    """Make every marked table of both pages anew."""
    for path in PAGES:
        path.write_text(render(path.read_text()))


if __name__ == "__main__":
    write_pages()
