"""What the paper has no table of: single changes to our own recipe, and that recipe at several budgets of time."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from skewconv.config import TrainConfig
from skewconv.train.presets import recipe

_MINUTES = (20, 60, 240)
_HOLDOUT = 5000
_ABLATION_EPOCHS = 2

# Names of the rows -> what they change in the model. The base has Chebyshev of degree 3 (the fewest convolutions that
# are accurate enough in training), norm bound 2.1, zero padding, MaxMin and an orthogonal head.
_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "base/none": {},
    "series/taylor-5": {"series": "taylor", "train_degree": 5, "eval_degree": 11},
    **{f"series/chebyshev-{degree}": {"train_degree": degree} for degree in (2, 4, 5)},
    "norm-bound/1": {"norm_bound": 1.0},
    "norm-bound/1.5": {"norm_bound": 1.5},
    "norm-bound/pi": {"norm_bound": math.pi},
    "padding/circular": {"padding_mode": "circular"},
    "activation/householder": {"activation": "householder"},
    "head/normalized": {"head": "normalized"},
}


def ablations(data: str) -> dict[str, TrainConfig]:
    """One change each, judged on held-out training images: a choice made by test images would no longer test it."""
    base = recipe(data)
    # The digits have few images: a fifth of them is enough to judge by.
    held = replace(base.loading, holdout=_HOLDOUT if data != "digits" else 300)
    base = replace(base, epochs=_ABLATION_EPOCHS, loading=held)
    return {name: replace(base, model=replace(base.model, **changes)) for name, changes in _CHANGES.items()}


def budgets(data: str) -> dict[str, TrainConfig]:
    """Our own recipe for the dataset, for so many minutes."""
    return {f"minutes/{minutes}": replace(recipe(data), epochs=None, minutes=float(minutes)) for minutes in _MINUTES}
