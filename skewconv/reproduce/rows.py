"""The rows of the paper's Tables 2, 3 and 4 and of our own, and the size of their runs: the paper's, or reduced.

Nothing here needs torch.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, get_args

from skewconv.choices import FOLDER, ConvName, Precision, Scale
from skewconv.config import LoadingConfig, OptimConfig, RegimeConfig, TrainConfig, flag, with_settings
from skewconv.errors import ArgumentError
from skewconv.train.presets import FLAGSHIP, PAPER, PRESETS, PaperRow, recipe

# Three seeds at two depths: a difference between methods means nothing until that between seeds is known.
_SEVERAL = (0, 1, 2)
_CPU_SEEDS = {f"lipconvnet-{depth}/{conv}": _SEVERAL for depth in (5, 20) for conv in ("soc", "bcop")}
_PAPER_DATA = "cifar10"

_HOLDOUT = 5000
# As small as the rows of Table 2, so that two cores try all of them in half an hour.
_ABLATION_EPOCHS, _ABLATION_WIDTH = 3, 8

_BY_BOUND = {"train_series": "chebyshev", "norm": "bound"}
# Names of the rows -> what they change. The base is our recipe: isometric polynomials of as few convolutions as keep
# the gradient in training, norm bound 2.1, zero padding, MaxMin, an orthogonal head, shifts by one pixel.
_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "base/none": {},
    "series/taylor-5": {"series": "taylor", "train_degree": 5, "eval_degree": 11},
    **{f"series/chebyshev-{degree}": {**_BY_BOUND, "train_degree": degree} for degree in (2, 4, 5)},
    "norm-bound/1": {"norm_bound": 1.0},
    "norm-bound/1.5": {"norm_bound": 1.5},
    # The filter of 3 x 3 taps without the factor 0.7 of the authors' code.
    "norm-bound/3": {"norm_bound": 3.0},
    "norm-bound/pi": {"norm_bound": math.pi},
    "padding/circular": {"padding_mode": "circular"},
}
# What three epochs do not tell: they rank the speed of learning, and what regularises is seen later. The base has
# circular padding, which trains faster (benchmarks/records/beside-bcop.json).
_LASTING: Mapping[str, Any] = {"epochs": 30, "eval_every": 10}
_RECIPES: Mapping[str, Mapping[str, Any]] = {
    "base/none": {},
    "padding/circular-from-16": {"padding_mode": "zeros", "circular_from": 16},
    "norm-bound/4.5": {"norm_bound": 4.5},
    "conv/cayley": {"conv": "cayley"},
    "activation/householder": {"activation": "householder"},
    "head/normalized": {"head": "normalized"},
    "logit-scale/1.5": {"logit_scale": 1.5},
    "logit-scale/3-offset-1": {"logit_scale": 3.0, "offset": 1.0},
    # The rate grows with the root of the batch.
    "batch/512": {"batch_size": 512, "lr": 0.06},
    # Norms of 4.5, a normalised head and larger logits in the loss.
    "together/1": {"norm_bound": 4.5, "head": "normalized", "logit_scale": 1.0},
}
_RECIPES_OF_IMAGES: Mapping[str, Mapping[str, Any]] = {"shift/2": {"padding": 2}}

# What the recipes found: the base of the refinements.
_FOUND: Mapping[str, Any] = {**FLAGSHIP, "conv": "soc", "norm_bound": 4.5}
_REFINEMENTS: Mapping[str, Mapping[str, Any]] = {
    "base/none": {},
    "depth/10": {"depth": 10},
    "norm-bound/3.2": {"norm_bound": 3.2},
    "norm-bound/6": {"norm_bound": 6.0},
    **{f"norm-bound-1x1/{name}": {"norm_bound_1x1": bound} for name, bound in (("2", 2.0), ("pi", math.pi))},
    "learn-scale/0.5": {"learn_scale": 0.5},
    "conv/cayley": {"conv": "cayley", "norm_bound": None},
    "conv/cayley-offset-3": {"conv": "cayley", "norm_bound": None, "offset": 3.0},
    **{f"conv/cayley-depth-{depth}": {"conv": "cayley", "norm_bound": None, "depth": depth} for depth in (10, 15)},
    # As Cayley's layers: turns of any angle, whose size is learned.
    "learn-scale/free": {"learn_scale": 0.5, "norm_bound": 9.0, "norm_bound_1x1": math.pi},
    "logit-scale/0.75": {"logit_scale": 0.75},
    "logit-scale/1.25-offset-3": {"logit_scale": 1.25, "offset": 3.0},
    **{f"offset/{offset}": {"offset": float(offset)} for offset in (1, 3)},
    **{f"rate/{rate}": {"lr": rate} for rate in (0.03, 0.12)},
    **{f"together/offset-{offset}": {"norm_bound_1x1": math.pi, "offset": float(offset)} for offset in (3, 4)},
    **{f"batch/{size}": {"batch_size": size, "lr": round(0.06 * (size / 512) ** 0.5, 3)} for size in (256, 1024)},
}
_REFINEMENTS_OF_IMAGES: Mapping[str, Mapping[str, Any]] = {
    "flip/alternate": {"alternate_flip": True},
    **{f"shift/{pixels}": {"padding": pixels} for pixels in (0, 2, 3)},
}

# Minutes -> largest shift of the images, and the rest. Evaluations take time from training.
_BUDGETS: Mapping[float, tuple[int, Mapping[str, Any]]] = {
    20.0: (1, {"width": 16, "eval_every": 5}),
    60.0: (2, {"width": 24, "eval_every": 10}),
    90.0: (2, {"depth": 10, "width": 16, "eval_every": 20}),
    240.0: (2, {"width": 32, "eval_every": 20}),
}

# Depth -> minutes of one thread, for the comparison at equal time: about those of an epoch with Taylor's polynomial.
_PRODUCTS_MINUTES = {5: 1.0, 20: 3.0, 40: 6.0}
# The name of a training polynomial ends with its degree, the number of products of a layer.
_POLYNOMIALS: Mapping[str, Mapping[str, Any]] = {
    **{f"isometric-{degree}": {"train_degree": degree} for degree in (3, 4, 5)},
    "chebyshev-3": {**_BY_BOUND, "train_degree": 3},
    "taylor-5": {"series": "taylor", "train_degree": 5, "eval_degree": 11},
}
_AT_EQUAL_TIME, _AT_LARGEST_DEPTH = ("isometric-3", "isometric-4", "taylor-5"), ("isometric-3", "taylor-5")
# A Chebyshev layer of degree 3 shrinks a signal to about 0.955 in training: the loss sees logits that are smaller than
# those of evaluation. This row has the isometric polynomial and logits scaled down by as much.
_CHEBYSHEV_GAIN = 0.955
# What becomes of the norms of the 3 x 3 filters, in the name of a row.
_NORMS: Mapping[str, Mapping[str, Any]] = {
    "bound-2.1": {},
    "bound-1": {"norm_bound": 1.0},
    "learned-up-to-2.1": {"learn_scale": 0.3},
    "learned-and-penalised": {"learn_scale": 0.3, "norm_penalty": 0.01},
    "learned-up-to-pi": {"learn_scale": 0.3, "norm_bound": math.pi},
}

# The reduced recipe is the same for every convolution. Optimizer, rate and batch were chosen on 5,000 held-out training
# images, in trials of LipConvnet-5 with SOC and with BCOP alike (benchmarks/records/reproduce/trials), and of ResNet-18
# with each convolution (residual-trials).
_OPTIM = OptimConfig(optimizer="adamw", lr=0.03, schedule="one-cycle")
_WIDTH = 8
# Deeper networks have fewer epochs than those of up to this depth.
_FEWER_BEYOND = 20
_PROVABLE = RegimeConfig(regime="provable", logit_scale=0.75, offset=2.0)
_BATCH = 128
# The authors' code trains in mixed precision, too (float16). Evaluation is in float64.
_PRECISION: Precision = "bf16-mixed"
_ATTACKED_IMAGES = 2000


@dataclass(frozen=True)
class Row:
    """A row of a table, such as lipconvnet-5/soc: a network and its convolution, the paper's recipe and results."""

    name: str
    recipe: TrainConfig
    paper: PaperRow | None
    #: True if it is run at the reduced scale when no rows are named
    usual: bool = True
    cpu_seeds: tuple[int, ...] = (0,)
    #: the config of the reduced scale, where that does not follow from the paper's recipe
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
    rows = list(_paper_rows("provable", data, lambda config: True))
    soc = next(row for row in rows if row.name == "lipconvnet-5/soc")
    plain = {"series": "chebyshev", "train_degree": None, "eval_degree": None}
    for conv in get_args(ConvName):
        if conv not in ("soc", "bcop", "standard"):
            model = replace(soc.recipe.model, conv=conv, **plain)  # type: ignore[arg-type]
            rows.append(Row(f"lipconvnet-5/{conv}", replace(soc.recipe, preset=None, model=model), None))
    return rows


def _two_cores_train(config: TrainConfig) -> bool:
    """ResNet-18 with each convolution, and ResNet-34 with two."""
    arch, conv = config.model.arch, config.model.conv
    return arch == "resnet-18" or (arch == "resnet-34" and conv != "bcop")


def _recipe(data: str, **settings: Any) -> TrainConfig:
    """Our recipe; that of a folder leaves batches and evaluations to the number of its images, and rows fix both."""
    fixed = {"batch_size": _BATCH, "eval_every": 1} if data.startswith(FOLDER) else {}
    return recipe(data, **{**fixed, **settings})


def ablations(data: str) -> dict[str, TrainConfig]:
    """One change each, evaluated on held-out training images: test images that chose a recipe no longer test it."""
    return _changed(_recipe(data, epochs=_ABLATION_EPOCHS, width=_ABLATION_WIDTH), _CHANGES)


def recipes(data: str) -> dict[str, TrainConfig]:
    """One change each, for so long that overfitting is seen."""
    base = _recipe(data, width=_ABLATION_WIDTH, padding_mode="circular", precision=_PRECISION, **_LASTING)
    return _changed(base, {**_RECIPES, **(_RECIPES_OF_IMAGES if base.loading.augment else {})})


def refinements(data: str) -> dict[str, TrainConfig]:
    """One change each to what the recipes found, as long."""
    base = _recipe(data, width=_ABLATION_WIDTH, **_FOUND, **_LASTING)
    return _changed(base, {**_REFINEMENTS, **(_REFINEMENTS_OF_IMAGES if base.loading.augment else {})})


def decay(data: str) -> dict[str, TrainConfig]:
    """The paper's "weight decay hurts BCOP" (Section 7): its optimizer and rate, its decay and that of its code."""
    base = _recipe(data, epochs=_ABLATION_EPOCHS, width=_ABLATION_WIDTH, optimizer="sgd", lr=0.1)
    kinds = itertools.product(("soc", "bcop"), (0.0, 1e-4, 5e-4))
    return _changed(base, {f"{conv}/{share:g}": {"conv": conv, "weight_decay": share} for conv, share in kinds})


def products(data: str, *, timed: bool) -> dict[str, TrainConfig]:
    """Polynomials of training at three depths, compared after one epoch, or after equal processor time."""
    rows: dict[str, TrainConfig] = {}
    for depth, minutes in _PRODUCTS_MINUTES.items():
        length = {"minutes": minutes} if timed else {"epochs": 1}
        base = _recipe(data, depth=depth, width=_ABLATION_WIDTH, eval_every=10, **length)
        scale = round(base.regime.logit_scale * _CHEBYSHEV_GAIN**depth, 3)
        polynomials = {**_POLYNOMIALS, "rescaled-3": {"train_degree": 3, "logit_scale": scale}}
        # At the largest depth the question is whether three products do what the paper's five do.
        chosen = _AT_LARGEST_DEPTH if depth == 40 else _AT_EQUAL_TIME if timed else polynomials
        rows |= _changed(base, {f"lipconvnet-{depth}/{name}": polynomials[name] for name in chosen})
    return rows


def norms(data: str) -> dict[str, TrainConfig]:
    """Norms of SOC layers that are fixed, learned, and learned with a penalty, after one epoch."""
    base = _recipe(data, width=_ABLATION_WIDTH, epochs=1, eval_every=10)
    return _changed(base, {f"lipconvnet-{base.model.depth}/{name}": changes for name, changes in _NORMS.items()})


def flagship(data: str) -> dict[str, TrainConfig]:
    """What the trials found, at several budgets: the longer, the larger the network and the shifts of its images."""
    rows = {}
    for minutes, (shift, own) in _BUDGETS.items():
        shifts = {"padding": shift} if recipe(data).loading.augment else {}
        rows[f"minutes/{minutes:g}"] = _recipe(data, minutes=minutes, **{**FLAGSHIP, **shifts, **own})
    return rows


def _changed(base: TrainConfig, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, TrainConfig]:
    """The base with each of the changes, evaluated on held-out images: a fifth of the digits, which are few."""
    base = with_settings(base, {"holdout": _HOLDOUT if base.data != "digits" else 300})
    return {name: with_settings(base, settings) for name, settings in changes.items()}


def _ours(configs: Mapping[str, TrainConfig], several: Callable[[str], bool]) -> list[Row]:
    """Rows that the paper has not; three seeds for those whose names satisfy `several`."""
    seeds = {name: _SEVERAL if several(name) else (0,) for name in configs}
    return [Row(name, config, None, cpu_seeds=seeds[name], own=config) for name, config in configs.items()]


#: name -> the rows on a dataset; one line makes a new table
EXPERIMENTS: Mapping[str, Callable[[str], list[Row]]] = {
    "table2": _table_2,
    "table3": lambda data: [*_paper_rows("standard", data, _two_cores_train)],
    "table4": lambda data: [*_paper_rows("adversarial", data, lambda config: True)],
    "ablations": lambda data: _ours(ablations(data), "base/none".__eq__),
    "recipes": lambda data: _ours(recipes(data), "base/none".__eq__),
    "refinements": lambda data: _ours(refinements(data), "base/none".__eq__),
    "decay": lambda data: _ours(decay(data), lambda name: False),
    # Three seeds where depth does not make them too long.
    "products": lambda data: _ours(products(data, timed=False), lambda name: "lipconvnet-40/" not in name),
    "norms": lambda data: _ours(norms(data), lambda name: False),
    "products-timed": lambda data: _ours(products(data, timed=True), lambda name: "lipconvnet-40/" not in name),
    "flagship": lambda data: _ours(flagship(data), "minutes/20".__eq__),
}


def chosen_rows(experiment: str, data: str, names: tuple[str, ...], scale: str) -> list[Row]:
    """The rows of an experiment that were named; by default those of the paper, or the usual ones of the cpu scale."""
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


@dataclass(frozen=True)
class Changes:
    """Changes of the recipe, for all rows alike; the table and every record show them."""

    epochs: int | None = None
    """Epochs of each run; drops of the learning rate stay at the same shares of the run (none: the recipe's)."""
    precision: Precision | None = None
    """Arithmetic of training (none: the recipe's)."""
    eval_every: int | None = None
    """Epochs between evaluations during training (none: the recipe's)."""
    width: int | None = None
    """Channels of the first stage; --scale cpu only (none: the recipe's)."""
    minutes_a_row: float | None = None
    """Minutes of each row and seed, in place of epochs; --scale cpu only (none: the recipe's epochs)."""


def config_of(row: Row, scale: Scale, seed: int, changes: Changes | None = None) -> TrainConfig:
    """The config of a row at a scale."""
    given = {name: value for name, value in vars(changes or Changes()).items() if value is not None}
    if scale == "paper":
        # Changes that leave the network and its length.
        allowed = ("epochs", "precision", "eval_every")
        if unfit := [name for name in given if name not in allowed]:
            raise ArgumentError(
                f"{flag(unfit[0])} changes the network or its time, and --scale paper keeps the paper's: use --scale "
                f"cpu, or change {', '.join(map(flag, allowed))}"
            )
        config = row.recipe
    else:
        config = row.own or _reduced(row.recipe)
    if {"epochs", "minutes_a_row"} <= set(given):
        both = f"--epochs is {given['epochs']} and --minutes-a-row is {given['minutes_a_row']}"
        raise ArgumentError(f"{both}: give one of them, not both")
    if "epochs" in given:
        given["minutes"] = None
    if "minutes_a_row" in given:
        given |= {"minutes": given.pop("minutes_a_row"), "epochs": None}
    return replace(with_settings(config, given), seed=seed)


def _reduced(recipe: TrainConfig) -> TrainConfig:
    """The recipe of two cores. SOC's series is this library's own: fewer convolutions at a smaller proven error."""
    own = {"width": _WIDTH, "head": "orthogonal", "series": "chebyshev", "train_degree": None, "eval_degree": None}
    model, regime, epochs = with_settings(recipe.model, own), recipe.regime, 8
    if regime.regime == "provable":
        regime, epochs = _PROVABLE, 12 if model.depth <= _FEWER_BEYOND else 8
    elif regime.regime == "adversarial":
        regime = replace(regime, attack_images=_ATTACKED_IMAGES)
    small = replace(recipe, preset=None, model=model, optim=_OPTIM, loading=LoadingConfig(batch_size=_BATCH))
    return replace(small, epochs=epochs, regime=regime, precision=_PRECISION)


def reductions(config: Any, recipe: Any) -> list[str]:
    """Every setting in which a run differs from the paper's recipe, such as 'epochs 2 (200)', 200 in the paper."""
    found = []
    for each in fields(config):
        ours, theirs = getattr(config, each.name), getattr(recipe, each.name)
        if is_dataclass(ours):
            found += reductions(ours, theirs)
        # Seeds have a column, the data is in the title.
        elif ours != theirs and each.name not in ("preset", "seed", "data"):
            found.append(f"{each.name.replace('_', '-')} {_shown(ours)} ({_shown(theirs)})")
    return found


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
