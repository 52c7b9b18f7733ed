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

# Depth -> minutes of one thread, for the comparison at equal time: about those of an epoch with Taylor's polynomial.
_PRODUCTS_MINUTES = {5: 1.5, 20: 5.0, 40: 10.0}
# The name of a training polynomial ends with its degree, the number of products of a layer.
_POLYNOMIALS: Mapping[str, Mapping[str, Any]] = {
    **{f"isometric-{degree}": {"train_degree": degree} for degree in (3, 4, 5)},
    "chebyshev-3": {**_BY_BOUND, "train_degree": 3},
    "taylor-5": {"series": "taylor", "train_degree": 5, "eval_degree": 11},
}
_AT_EQUAL_TIME = ("isometric-3", "isometric-4", "taylor-5")


def ablations(data: str) -> dict[str, TrainConfig]:
    """One change each, judged on held-out training images: a choice made by test images would no longer test it."""
    base = recipe(data, epochs=_ABLATION_EPOCHS, width=_ABLATION_WIDTH)
    return _changed(base, {**_CHANGES, **(_CHANGES_OF_IMAGES if base.loading.augment else {})})


def products(data: str, *, timed: bool) -> dict[str, TrainConfig]:
    """Polynomials of training at three depths, judged in evaluation: after one epoch, or after equal processor time."""
    rows: dict[str, TrainConfig] = {}
    for depth, minutes in _PRODUCTS_MINUTES.items():
        length = {"minutes": minutes} if timed else {"epochs": 1}
        base = recipe(data, depth=depth, width=_ABLATION_WIDTH, eval_every=10, **length)
        chosen = _AT_EQUAL_TIME if timed else _POLYNOMIALS
        rows |= _changed(base, {f"lipconvnet-{depth}/{name}": _POLYNOMIALS[name] for name in chosen})
    return rows


def _changed(base: TrainConfig, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, TrainConfig]:
    """The base with each of the changes, judged on held-out images."""
    # The digits have few images: a fifth of them is enough to judge by.
    base = with_settings(base, {"holdout": _HOLDOUT if base.data != "digits" else 300})
    return {name: with_settings(base, settings) for name, settings in changes.items()}


def budgets(data: str) -> dict[str, TrainConfig]:
    """Our own recipe for the dataset, for so many minutes."""
    return {f"minutes/{minutes}": recipe(data, minutes=float(minutes)) for minutes in _MINUTES}
