"""What the paper has no table of: changes to our own recipe one at a time, at equal epochs or at equal minutes."""

import math
from collections.abc import Mapping
from typing import Any

from skewconv.config import TrainConfig
from skewconv.fields import with_settings
from skewconv.train.presets import recipe

_MINUTES = (20, 60, 240)
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
    "norm-bound/pi": {"norm_bound": math.pi},
    "padding/circular": {"padding_mode": "circular"},
    "activation/householder": {"activation": "householder"},
    "head/normalized": {"head": "normalized"},
    **{f"offset/{offset}": {"offset": float(offset)} for offset in (1, 3)},
    "average/0.99": {"average": 0.99},
    # The rate grows with the root of the batch.
    "batch/256": {"batch_size": 256, "lr": 0.042},
}
_CHANGES_OF_IMAGES: Mapping[str, Mapping[str, Any]] = {
    "flip/alternate": {"alternate_flip": True},
    **{f"shift/{pixels}": {"padding": pixels} for pixels in (0, 2, 4)},
}

# Norm bound / Chebyshev's series in training: many products for a filter that may turn far, or few for one that may
# not.
_NORMS: Mapping[str, Mapping[str, Any]] = {
    "2.1/degree-3": {**_BY_BOUND, "train_degree": 3},
    "2.1/tracked": {"train_series": "chebyshev"},
    "2.1/tracked-degree-2": {"train_series": "chebyshev", "train_degree": 2},
    "1.5/degree-2": {**_BY_BOUND, "norm_bound": 1.5, "train_degree": 2},
    "1.5/tracked": {"train_series": "chebyshev", "norm_bound": 1.5},
    "1/tracked-degree-1": {"train_series": "chebyshev", "norm_bound": 1.0, "train_degree": 1},
}
# In more than five minutes: the paper's bound, and the best of the five minutes.
_NORMS_TO_COMPARE_LONGER = ("2.1/degree-3", "1.5/degree-2")


def ablations(data: str) -> dict[str, TrainConfig]:
    """One change each, judged on held-out training images: a choice made by test images would no longer test it."""
    base = recipe(data, epochs=_ABLATION_EPOCHS, width=_ABLATION_WIDTH)
    return _changed(base, {**_CHANGES, **(_CHANGES_OF_IMAGES if base.loading.augment else {})})


def norms(data: str, minutes: int) -> dict[str, TrainConfig]:
    """What SOC's filters are scaled to, and with how many products they are trained, in the same time.

    Images are shifted as is customary: these trials are older than our own recipe's shorter shifts.
    """
    names = _NORMS if minutes <= 5 else _NORMS_TO_COMPARE_LONGER
    base = recipe(data, minutes=float(minutes), padding=None)
    return _changed(base, {name: _NORMS[name] for name in names})


def _changed(base: TrainConfig, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, TrainConfig]:
    """The base with each of the changes, judged on held-out images."""
    # The digits have few images: a fifth of them is enough to judge by.
    base = with_settings(base, {"holdout": _HOLDOUT if base.data != "digits" else 300})
    return {name: with_settings(base, settings) for name, settings in changes.items()}


def budgets(data: str) -> dict[str, TrainConfig]:
    """Our own recipe for the dataset, for so many minutes."""
    return {f"minutes/{minutes}": recipe(data, minutes=float(minutes)) for minutes in _MINUTES}
