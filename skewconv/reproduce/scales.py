"""How large the runs of a table are: the paper's recipe, word for word, or a reduced one that says what it reduced."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from skewconv.choices import Scale
from skewconv.config import LoadingConfig, OptimConfig, RegimeConfig, TrainConfig
from skewconv.errors import ArgumentError
from skewconv.fields import flag, with_settings
from skewconv.reproduce.changes import Changes
from skewconv.reproduce.rows import Row

# The reduced recipe is the same for every convolution. Optimiser, rate and batch were chosen on 5,000 held-out training
# images, in trials of LipConvnet-5 with SOC and with BCOP alike (benchmarks/records/reproduce/trials), and of ResNet-18
# with each convolution (residual-trials): in so few steps the paper's SGD hardly moves an orthogonal layer.
_OPTIM = OptimConfig(optimizer="adamw", lr=0.03, schedule="one-cycle")
_WIDTH = 8
_PROVABLE_EPOCHS, _RESIDUAL_EPOCHS = 3, 2
_PROVABLE = RegimeConfig(regime="provable", logit_scale=0.75, offset=2.0)
_BATCH = 128
_ATTACKED_IMAGES = 1000


def config_of(row: Row, scale: Scale, seed: int, changes: Changes | None = None) -> TrainConfig:
    """What to train for a row at a scale.

    >>> from skewconv.reproduce.rows import chosen_rows
    >>> (row,) = chosen_rows("table2", "cifar10", ("lipconvnet-40/bcop",), "cpu")
    >>> config_of(row, "paper", 0).model.width, config_of(row, "cpu", 0).model.width
    (32, 8)
    """
    changes = changes or Changes()
    if scale == "paper":
        if given := [name for name, value in vars(changes).items() if value is not None]:
            raise ArgumentError(
                f"{flag(given[0])} changes the recipe, and --scale paper is the paper's own: use --scale cpu"
            )
        return replace(row.recipe, seed=seed)
    if changes.epochs is not None and changes.minutes_a_row is not None:
        raise ArgumentError(
            f"--epochs is {changes.epochs} and --minutes-a-row is {changes.minutes_a_row}: give one of them, not both"
        )
    reduced = row.own or _reduced(row.recipe)
    if changes.width is not None:
        reduced = replace(reduced, model=replace(reduced.model, width=changes.width))
    if changes.epochs is not None:
        reduced = replace(reduced, epochs=changes.epochs, minutes=None)
    if changes.minutes_a_row is not None:
        reduced = replace(reduced, epochs=None, minutes=changes.minutes_a_row)
    return replace(reduced, seed=seed)


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


# What a reader of the table has to know, and where it stands in a config.
_TOLD = {
    "epochs": "epochs",
    "minutes": "minutes a row",
    "model.width": "width",
    "model.series": "series",
    "loading.batch_size": "batch size",
    "loading.holdout": "training images held out, and judged by",
    "optim.optimizer": "optimiser",
    "optim.lr": "learning rate",
    "optim.schedule": "schedule",
    "optim.weight_decay": "weight decay",
    "regime.logit_scale": "scale of the logits in the loss",
    "regime.offset": "offset of the loss",
    "regime.attack_images": "images attacked",
}
# What is meant by a setting that is not set.
_UNSET = {"regime.attack_images": "all"}


def reductions(config: TrainConfig, recipe: TrainConfig) -> list[str]:
    """In what a run differs from the paper's recipe, in words, the paper's value in brackets.

    >>> from skewconv.reproduce.rows import chosen_rows
    >>> (row,) = chosen_rows("table3", "cifar10", ("resnet-18/standard",), "cpu")
    >>> reductions(config_of(row, "cpu", 0), row.recipe)[:4]
    ['epochs 2 (200)', 'width 8 (64)', 'optimiser adamw (sgd)', 'learning rate 0.03 (0.1)']
    """
    return list(_reductions(config, recipe))


def _reductions(config: TrainConfig, recipe: TrainConfig) -> Iterator[str]:
    for path, label in _TOLD.items():
        ours, theirs = _at(config, path), _at(recipe, path)
        if ours != theirs:
            unset = _UNSET.get(path, "none")
            yield f"{label} {_said(ours, unset)} ({_said(theirs, unset)})"


def _at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def _said(value: Any, unset: str) -> str:
    return unset if value is None else f"{value:g}" if isinstance(value, float) else str(value)
