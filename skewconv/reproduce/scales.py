"""How large the runs of a table are: the paper's recipe, or a reduced one; a table says in what its runs differ."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from skewconv.choices import Scale
from skewconv.config import LoadingConfig, OptimConfig, RegimeConfig, TrainConfig
from skewconv.errors import ArgumentError
from skewconv.fields import flag, with_settings
from skewconv.reproduce.changes import Changes
from skewconv.reproduce.rows import Row

# The reduced recipe is the same for every convolution. Optimiser, rate and batch were chosen on 5,000 held-out training
# images, in trials of LipConvnet-5 with SOC and with BCOP alike (benchmarks/records/reproduce/trials), and of ResNet-18
# with each convolution (residual-trials).
_OPTIM = OptimConfig(optimizer="adamw", lr=0.03, schedule="one-cycle")
_WIDTH = 8
_PROVABLE_EPOCHS, _RESIDUAL_EPOCHS = 3, 2
_PROVABLE = RegimeConfig(regime="provable", logit_scale=0.75, offset=2.0)
_BATCH = 128
_ATTACKED_IMAGES = 1000
#: what may be changed of the paper's recipe; the table says it
CHANGES_OF_THE_PAPER = ("epochs", "precision", "eval_every")


def config_of(row: Row, scale: Scale, seed: int, changes: Changes | None = None) -> TrainConfig:
    """What to train for a row at a scale.

    >>> from skewconv.reproduce.rows import chosen_rows
    >>> (row,) = chosen_rows("table2", "cifar10", ("lipconvnet-40/bcop",), "cpu")
    >>> config_of(row, "paper", 0).model.width, config_of(row, "cpu", 0).model.width
    (32, 8)
    """
    given = {name: value for name, value in vars(changes or Changes()).items() if value is not None}
    if scale == "paper":
        if unfit := [name for name in given if name not in CHANGES_OF_THE_PAPER]:
            allowed = ", ".join(map(flag, CHANGES_OF_THE_PAPER))
            raise ArgumentError(
                f"{flag(unfit[0])} changes the network or its time, and --scale paper keeps the paper's: use --scale "
                f"cpu, or change {allowed}"
            )
        config = row.recipe
    else:
        config = row.own or _reduced(row.recipe)
    if {"epochs", "minutes_a_row"} <= set(given):
        raise ArgumentError(
            f"--epochs is {given['epochs']} and --minutes-a-row is {given['minutes_a_row']}: give one of them, not both"
        )
    if "epochs" in given:
        given["minutes"] = None
    if "minutes_a_row" in given:
        given |= {"minutes": given.pop("minutes_a_row"), "epochs": None}
    return replace(with_settings(config, given), seed=seed)


def _reduced(recipe: TrainConfig) -> TrainConfig:
    """The recipe of two cores. SOC's series is this library's own: fewer convolutions at a smaller proven error."""
    own = {"width": _WIDTH, "head": "orthogonal", "series": "chebyshev", "train_degree": None, "eval_degree": None}
    model = with_settings(recipe.model, own)
    small = replace(recipe, preset=None, model=model, optim=_OPTIM, loading=LoadingConfig(batch_size=_BATCH))
    if recipe.regime.regime == "provable":
        return replace(small, epochs=_PROVABLE_EPOCHS, regime=_PROVABLE)
    regime = recipe.regime
    if regime.regime == "adversarial":
        regime = replace(regime, attack_images=_ATTACKED_IMAGES)
    return replace(small, epochs=_RESIDUAL_EPOCHS, regime=regime)


# What a setting is called under a table; the others are called as their flags are.
_LABELS = {
    "minutes": "minutes a row",
    "series": "series of SOC",
    "train_degree": "convolutions of a SOC layer in training",
    "eval_degree": "convolutions of a SOC layer in evaluation",
    "optimizer": "optimiser",
    "lr": "learning rate",
    "logit_scale": "scale of the logits in the loss",
    "offset": "offset of the loss",
    "attack_images": "images attacked",
    "holdout": "training images held out, and judged by",
    "keep_last": "last, smaller batch of an epoch kept",
    "eval_every": "epochs between evaluations",
}
# What is meant by a setting that is not set.
_UNSET = {
    "attack_images": "all",
    "train_degree": "as few as its tolerance allows",
    "eval_degree": "as few as 1e-6 allows",
    "padding": "the dataset's own",
    "flip": "the dataset's own",
}
# The name of the recipe; seeds have a column, the data is in the title.
_TOLD_ELSEWHERE = ("preset", "seed", "data")


def reductions(config: TrainConfig, recipe: TrainConfig) -> list[str]:
    """In what a run differs from the paper's recipe, in words, the paper's value in brackets.

    >>> from skewconv.reproduce.rows import chosen_rows
    >>> (row,) = chosen_rows("table3", "cifar10", ("resnet-18/standard",), "cpu")
    >>> reductions(config_of(row, "cpu", 0), row.recipe)[:4]
    ['epochs 2 (200)', 'width 8 (64)', 'optimiser adamw (sgd)', 'learning rate 0.03 (0.1)']

    Every setting is compared, so that none can be left out.
    """
    return list(_reductions(config, recipe))


def _reductions(config: Any, recipe: Any) -> Iterator[str]:
    for each in fields(config):
        ours, theirs = getattr(config, each.name), getattr(recipe, each.name)
        if is_dataclass(ours):
            yield from _reductions(ours, theirs)
        elif ours != theirs and each.name not in _TOLD_ELSEWHERE:
            said = [_said(value, _UNSET.get(each.name, "none")) for value in (ours, theirs)]
            yield f"{_LABELS.get(each.name, each.name.replace('_', ' '))} {said[0]} ({said[1]})"


def _said(value: Any, unset: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(_said(each, unset) for each in value)
    return unset if value is None else f"{value:g}" if isinstance(value, float) else str(value)
