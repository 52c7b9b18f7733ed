"""The rows of the paper's Tables 2, 3 and 4, and those that other convolutions of this library add to them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from skewconv.config import TrainConfig
from skewconv.errors import ArgumentError
from skewconv.models.parts import CONVOLUTIONS
from skewconv.reproduce.ours import ablations, budgets, products
from skewconv.train.presets import PAPER, PRESETS, PaperRow

# The depths that two cores can train; the others are run where they are asked for by name.
_CPU_DEPTHS = (5, 10, 20, 30, 40)
# Three seeds where they are cheap: a difference between methods means nothing until that between seeds is known.
_SEVERAL = (0, 1, 2)
_CPU_SEEDS = {"lipconvnet-5/soc": _SEVERAL, "lipconvnet-5/bcop": _SEVERAL}
_PAPER_DATA = "cifar10"


@dataclass(frozen=True)
class Row:
    """A row of a table: a network and its convolution.

    Attributes:
        name: such as lipconvnet-5/soc.
        recipe: the paper's recipe for it.
        paper: what the paper reports of it; None for a convolution or a dataset that the paper has not.
        usual: whether it is run at the reduced scale when no rows are named.
        cpu_seeds: the seeds of the reduced scale.
        own: what is trained at the reduced scale, where that does not follow from the paper's recipe.
    """

    name: str
    recipe: TrainConfig
    paper: PaperRow | None
    usual: bool = True
    cpu_seeds: tuple[int, ...] = (0,)
    own: TrainConfig | None = None


def _paper_rows(regime: str, data: str, usual: Callable[[TrainConfig], bool]) -> Iterator[Row]:
    known = any(config.data == data for config in PRESETS.values())
    for preset, config in PRESETS.items():
        if config.regime.regime == regime and config.data == (data if known else _PAPER_DATA):
            name = "/".join(preset.split("/")[:2])
            recipe = config if known else replace(config, data=data, preset=None)
            yield Row(name, recipe, PAPER[preset] if known else None, usual(config), _CPU_SEEDS.get(name, (0,)))


def _table_2(data: str) -> list[Row]:
    """LipConvnets, provable; at depth 5 also every other convolution of the library that proves something."""
    rows = list(_paper_rows("provable", data, lambda config: config.model.depth in _CPU_DEPTHS))
    soc = next(row for row in rows if row.name == "lipconvnet-5/soc")
    plain = {"series": "chebyshev", "train_degree": None, "eval_degree": None}
    for conv in CONVOLUTIONS:
        if conv not in ("soc", "bcop", "standard"):
            model = replace(soc.recipe.model, conv=conv, **plain)  # type: ignore[arg-type]
            rows.append(Row(f"lipconvnet-5/{conv}", replace(soc.recipe, preset=None, model=model), None))
    return rows


def _table_3(data: str) -> list[Row]:
    """ResNets, standard training."""
    return list(_paper_rows("standard", data, lambda config: config.model.arch == "resnet-18"))


def _table_4(data: str) -> list[Row]:
    """ResNet-18, adversarial training."""
    return list(_paper_rows("adversarial", data, lambda config: True))


def _ours(configs: Mapping[str, TrainConfig], *several: str) -> list[Row]:
    """Rows that the paper has not, some of them with several seeds."""
    return [
        Row(name, config, None, cpu_seeds=_SEVERAL if name in several else (0,), own=config)
        for name, config in configs.items()
    ]


def _products(data: str, *, timed: bool) -> list[Row]:
    """Three seeds where depth does not make them too long."""
    rows = products(data, timed=timed)
    return _ours(rows, *(name for name, config in rows.items() if config.model.depth <= 20))


#: name -> the rows on a dataset; one line makes a new table
EXPERIMENTS: Mapping[str, Callable[[str], list[Row]]] = {
    "table2": _table_2,
    "table3": _table_3,
    "table4": _table_4,
    "ablations": lambda data: _ours(ablations(data), "base/none"),
    "products": lambda data: _products(data, timed=False),
    "products-timed": lambda data: _products(data, timed=True),
    "flagship": lambda data: _ours(budgets(data), "minutes/20"),
}


def chosen_rows(experiment: str, data: str, names: tuple[str, ...], scale: str) -> list[Row]:
    """The rows of an experiment that were named; by default those of the paper, or the usual ones of the cpu scale.

    >>> [row.name for row in chosen_rows("table4", "cifar10", (), "cpu")]
    ['resnet-18/standard', 'resnet-18/bcop', 'resnet-18/soc']
    """
    rows = {row.name: row for row in EXPERIMENTS[experiment](data)}
    if names == ("all",):
        return list(rows.values())
    if unknown := [name for name in names if name not in rows]:
        raise ArgumentError(f"{experiment} has no row {unknown[0]!r}: allowed are all, {', '.join(rows)}")
    if names:
        return [rows[name] for name in dict.fromkeys(names)]
    usual = [row for row in rows.values() if (row.usual if scale == "cpu" else row.recipe.preset is not None)]
    if not usual:
        raise ArgumentError(f"{experiment} is not of the paper, and has no rows at scale {scale}: use --scale cpu")
    return usual
