"""The presets with the paper's figures, as a list, and one of them beside a run of ours."""

from dataclasses import asdict

from skewconv.commands import print_json
from skewconv.config import TrainConfig
from skewconv.extras import optional
from skewconv.train.presets import PAPER, PRESETS

_ROBUST = {"provable": "provable at l2 radius 36/255", "adversarial": "under attack at l-infinity radius 8/255"}


def list_presets(as_json: bool) -> None:
    """Every preset with its row of the paper: accuracies in percent, seconds an epoch on an RTX 2080 Ti."""
    if as_json:
        print_json({"presets": {name: asdict(PAPER[name]) for name in PRESETS}})
        return
    table = optional("rich.table", "rich").Table("preset", "standard %", "robust %", "seconds an epoch")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in PAPER.items():
        robust = "" if row.robust is None else f"{row.robust:.2f}"
        table.add_row(name, f"{row.standard:.2f}", robust, f"{row.seconds:.1f}")
    optional("rich.console", "rich").Console(highlight=False).print(table)
    print("The paper's figures: accuracy in percent, and seconds an epoch on an RTX 2080 Ti. Robust is")
    print("; ".join(f"{text} (--regime {regime})" for regime, text in _ROBUST.items()) + ".")


def paper_rows(config: TrainConfig) -> list[tuple[str, str]]:
    """What the paper reports for the preset of a run; nothing where there is none."""
    row = PAPER.get(config.preset or "")
    if row is None:
        return []
    same = " (its settings were changed here)" if config != PRESETS[config.preset or ""] else ""
    rows = [(f"the paper's clean accuracy{same}", f"{row.standard:.2f}%")]
    if row.robust is not None:
        rows.append((f"the paper's, {_ROBUST[config.regime.regime]}", f"{row.robust:.2f}%"))
    return rows
