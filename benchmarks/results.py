"""RESULTS.md, the list of docs/reproducing.md and the plots, made from benchmarks/records: no figure is typed by hand.

Run: python benchmarks/results.py                      (the tables between the markers of the pages, and the plots)
     python benchmarks/results.py --collect OUT ...    (first copy the records of `skewconv reproduce --out OUT`)
     python benchmarks/results.py --trials FOLDER ...  (first copy the records of runs that chose the recipe)
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from findings import beside_standard, findings, noise_of, of_decay, speed, turning_point
from result_parts import (
    DEPTH,
    EPOCHS,
    MINUTES,
    PLOTS,
    RECIPE,
    RECORDS,
    RESIDUAL_TRIALS,
    TIME,
    TRIALS,
    by_row,
    collect,
    collect_trial,
    one_change,
    recipe_losses,
    records,
    seconds_by_depth,
    times,
)
from tables import ROOT, render

from skewconv.config import TrainConfig
from skewconv.reproduce.rows import EXPERIMENTS, chosen_rows
from skewconv.reproduce.study import Study
from skewconv.reproduce.table import markdown, table_of
from skewconv.train.presets import PRESETS

PAGES = (ROOT / "RESULTS.md", ROOT / "docs" / "reproducing.md")
DATA = "cifar10"
RADII = ("36/255", "72/255", "108/255")


def study(name: str) -> str:
    """The table of an experiment: its usual rows, those not run yet included, and any other that was run."""
    found = records(name)
    run = {record["results"]["row"] for record in found}
    usual = {row.name for row in chosen_rows(name, DATA, (), "cpu")}
    rows = [row for row in chosen_rows(name, DATA, ("all",), "cpu") if row.name in run | usual]
    return markdown(table_of(name, DATA, rows, found, times(name))).rstrip()


def coverage() -> str:
    """Each row of the paper's tables: what of it was run here."""
    tables = {"provable": "table2", "standard": "table3", "adversarial": "table4"}
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name in tables.values():
        for record in records(name):
            if record["results"]["status"] == "finished":
                row = record["results"]["row"]
                found.setdefault((name, f"{row}/{record['config']['data']}"), []).append(record)
    lines: dict[tuple[str, str], dict[str, str]] = {}
    run = 0
    for preset, config in PRESETS.items():
        table, name = tables[config.regime.regime], "/".join(preset.split("/")[:3])
        these = found.get((table, name), [])
        run += bool(these)
        lines.setdefault((table, name.rpartition("/")[0]), {})[config.data] = _scales(these, config) or "none"
    names = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
    told = [f"Of the {len(PRESETS)} rows of the paper's Tables 2, 3 and 4, {run} have a figure of ours."]
    told += ["", f"| table | row | {' | '.join(names.values())} |", "| --- | --- | --- | --- |"]
    told += [f"| {t[-1]} | {row} | {' | '.join(cells[data] for data in names)} |" for (t, row), cells in lines.items()]
    return "\n".join(told)


def _scales(these: list[dict[str, Any]], preset: TrainConfig) -> str:
    """Width, epochs and seeds of the records of a row, as shares of the paper's."""
    by_size: dict[str, list[str]] = {}
    for record in these:
        config = record["config"]
        size = f"width {config['model']['width']} of {preset.model.width}, {config['epochs']} of {preset.epochs} epochs"
        by_size.setdefault(size, []).append(str(record["seed"]))
    return "; ".join(
        f"{size}, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)}" for size, seeds in by_size.items()
    )


def order() -> str:
    """The paper's claims of Table 2 against the records."""
    rows = chosen_rows("table2", DATA, ("all",), "cpu")
    found = records("table2")
    told = [*findings(found), *turning_point(found), *speed(times("table2"), rows)]
    return "\n".join(f"- {sentence}" for sentence in told)


def precision() -> str:
    """The same row of Table 2, trained in float32 and in mixed precision."""
    (exact,) = records("precision")
    name, seed = exact["results"]["row"], exact["seed"]
    mixed = [each for each in records("table2") if (each["results"]["row"], each["seed"]) == (name, seed)]
    if not mixed:
        return f"Not run yet: {name}."
    told = (
        f"{100 * each['clean']:.2f}% clean and {100 * each['certified'][RADII[0]]:.2f}% certified at {RADII[0]}"
        for each in (mixed[0]["results"], exact["results"])
    )
    return f"{name}, seed {seed}: {' in mixed precision, '.join(told)} in float32."


def depth_time() -> str:
    """Seconds of a training step at the paper's width, against depth."""
    measured = seconds_by_depth()
    if not measured:
        return "Not measured yet: `python benchmarks/bench_depth.py` on a quiet machine."
    paper = {row.name: row.paper.seconds for row in chosen_rows("table2", DATA, ("all",), "cpu") if row.paper}
    heads = ["depth", "SOC, s", "SOC circular, s", "BCOP, s", "SOC / BCOP", "SOC circular / BCOP"]
    heads += ["SOC / BCOP, bfloat16", "SOC circular / BCOP, bfloat16"]
    heads += ["Algorithm 1, s", "BCOP at full width, s", "ratio of these", "the paper: SOC / BCOP"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    shorter = {"soc": 0, "soc-circular": 0}
    for depth, of in measured.items():
        theirs = paper[f"lipconvnet-{depth}/soc"] / paper[f"lipconvnet-{depth}/bcop"]
        ratios = {name: of[name] / of["bcop"] for name in shorter}
        shorter = {name: count + (ratios[name] < 1) for name, count in shorter.items()}
        figures = [*(of[name] for name in (*shorter, "bcop")), *ratios.values(), of["algorithm-1"]]
        figures[-1:-1] = [of[f"{name}-mixed"] / of["bcop-mixed"] for name in shorter]
        figures += [of["full-width-bcop"], of["algorithm-1"] / of["full-width-bcop"], theirs]
        lines.append(f"| {depth} | {' | '.join(f'{figure:.2f}' for figure in figures)} |")
    told = (
        f"As this library has both, SOC's step is shorter than BCOP's at {shorter['soc']} of {len(measured)} depths, "
        f"and at {shorter['soc-circular']} with the circular padding that BCOP has."
    )
    return "\n".join([*lines, "", told, *TIME.link()])


def paper_recipe() -> str:
    """The paper's recipe beside Algorithm 1 written literally, from equal filters and equal batches."""
    found = records("paper-recipe")
    if not found:
        return "Not run yet: `python benchmarks/paper_recipe.py --checkpoint PATH`."
    config, results = found[0]["config"], found[0]["results"]
    last = {name: each[-1] for name, each in recipe_losses().items()}
    shares = {name: 100 * share for name, share in results["test_accuracy"].items()}
    first, steps = results["first_20_losses"], len(results["losses"]["ours"])
    told = (
        f"LipConvnet-5, width {config['width']}, {config['epochs']} epochs, {steps} steps: the mean loss of the last "
        f"20 steps is {last['ours']:.3f} (literal: {last['literal']:.3f}), the test accuracy {shares['ours']:.2f}% "
        f"(literal: {shares['literal']:.2f}%). The first losses differ by {first['first']:.1e}, the first 20 by at "
        f"most {first['literal']:.3f}, and with 50 power steps in each pass of the literal layers, so that their norms "
        f"are converged as ours are, by {first['converged']:.3f}. The truncation error of a layer is up to "
        f"{first['truncation_error']:.3f}."
    )
    return "\n".join([told, "", f"![{RECIPE.words}](images/{RECIPE.path.name})"])


def residual_order() -> str:
    """The ranking of the convolutions in Tables 3 and 4 beside that of the paper, and how far from standard ones."""
    kinds = [("table3", "clean", "clean", "standard")]
    kinds += [("table4", "clean", "clean", "standard"), ("table4", "under PGD", "attacked", "robust")]
    return "\n".join(
        f"- Table {table[-1]}, {words}, {told}"
        for table, words, ours, theirs in kinds
        for told in beside_standard(records(table), chosen_rows(table, DATA, ("all",), "cpu"), ours, theirs)
    )


def flagship() -> str:
    """Our own recipe at its budgets, and how it got there."""
    rows = chosen_rows("flagship", DATA, ("all",), "cpu")
    told = [study("flagship"), ""]
    for name, title in (("flagship-found", "The recipe before it"), ("flagship-before", "The first recipe")):
        seen = [row for row in rows if row.name in by_row(records(name))]
        table = table_of("flagship", DATA, seen, records(name), times(name))
        told += [markdown(replace(table, title=title, notes=())).rstrip(), ""]
    return "\n".join([*told, *MINUTES.link()])


def decay() -> str:
    """Weight decay with SOC and with BCOP, against the noise of the ablations, which train as long."""
    noise = noise_of(by_row(records("ablations")).values())
    told = of_decay(by_row(records("decay")), noise)
    return "\n".join([study("decay"), "", *(f"- {sentence}" for sentence in told)]).rstrip()


def trials(study: str) -> str:
    """Runs that chose the reduced recipe of LipConvnets or of ResNets; only the former are certified."""
    found = [(record["config"], record["results"]) for record in records(study)]
    radii = [radius for radius in RADII if all("certified" in results for _, results in found)]
    heads = ["convolution", "optimizer", "rate", "epochs", "clean, %"]
    heads += [f"certified at {radius}, %" for radius in radii]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for config, results in found:
        shares = [results["clean"], *(results["certified"][radius] for radius in radii)]
        cells = [config["model"]["conv"], config["optim"]["optimizer"], f"{config['optim']['lr']:g}"]
        cells += [f"{results['epochs']:g}", *(f"{100 * share:.2f}" for share in shares)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if found else "None has finished yet."


def jacobians() -> str:
    """The largest Jacobian of all trained layers, and the error that follows."""
    found = [
        record["results"]["jacobian"]
        for name in ("table2", "table3", "table4", "flagship", "flagship-found")
        for record in records(name)
        if "jacobian" in record["results"]
    ]
    if not found:
        return "No network with SOC has finished yet."
    layers = sum(each["layers"] for each in found)
    names = ("norm_estimate", "norm_upper_bound", "truncation_error_taylor_12_terms", "truncation_error")
    largest = {name: max(each[name] for each in found) for name in names}
    return (
        f"Over {layers} trained layers of {len(found)} networks the largest norm by power iteration at the image's own "
        f"size is {largest['norm_estimate']:.3f} (the paper: below 1.8), and its proven upper bound "
        f"{largest['norm_upper_bound']:.3f}. With that bound the paper's 12 Taylor terms have a proven error of "
        f"{largest['truncation_error_taylor_12_terms']:.2e} (the paper, from its estimate: 2.415e-06); the polynomials "
        f"that the layers really use in evaluation have one of {largest['truncation_error']:.2e}."
    )


def budget() -> str:
    """Total training time: of the seconds of an epoch, of budgets of minutes, or as long as the recorded runs took."""
    lines = ["| command | runs | hours of training | cores |", "| --- " * 4 + "|"]
    for name in EXPERIMENTS:
        # Minutes of one core are what these runs were given.
        one_core = name == "products-timed"
        study = Study(name, "cpu", tuple(chosen_rows(name, DATA, (), "cpu")), RECORDS / "none")
        spent = {(each["results"]["row"], each["seed"]): each["results"].get("wall_seconds") for each in records(name)}
        seconds = [study.seconds_left(job, times(name)) or spent.get((job.row.name, job.seed)) for job in study.jobs()]
        known = [each for each in seconds if each is not None]
        hours = f"{sum(known) / 3600:.1f}"
        if len(known) < len(seconds):
            hours = f"{hours} ({len(known)} runs)" if known else "pending"
        command = f"`skewconv reproduce {name}{' --processor-time' if one_core else ''}`"
        lines.append(f"| {command} | {len(seconds)} | {hours} | {1 if one_core else 2} |")
    return "\n".join(lines)


TABLES = {
    "coverage": coverage,
    "table2": lambda: study("table2"),
    "precision": precision,
    "order": order,
    "curves": lambda: "\n".join([*DEPTH.link(), *EPOCHS.link()]).strip(),
    "depth-time": depth_time,
    "paper-recipe": paper_recipe,
    "table3": lambda: study("table3"),
    "table4": lambda: study("table4"),
    "residual-order": residual_order,
    "flagship": flagship,
    "ablations": lambda: one_change("ablations", DATA),
    "recipes": lambda: one_change("recipes", DATA),
    "refinements": lambda: one_change("refinements", DATA),
    "decay": decay,
    "products": lambda: study("products"),
    "products-timed": lambda: study("products-timed"),
    "norms": lambda: study("norms"),
    "jacobians": jacobians,
    "trials": lambda: trials(TRIALS),
    "residual-trials": lambda: trials(RESIDUAL_TRIALS),
    "budget": budget,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", type=Path, nargs="*", default=[])
    parser.add_argument("--trials", type=Path, nargs="*", default=[])
    arguments = parser.parse_args()
    for folder in arguments.collect:
        collect(folder)
    for folder in arguments.trials:
        collect_trial(folder)
    for plot in PLOTS:
        plot.draw()
    for page in PAGES:
        page.write_text(render(page.read_text(), TABLES))
