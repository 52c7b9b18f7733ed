"""What a user changes of the recipe of a scale."""

from dataclasses import dataclass

from skewconv.choices import Precision


@dataclass(frozen=True)
class Changes:
    """What a user changes of the recipe of a scale, for all rows alike; the table and every record say it."""

    epochs: int | None = None
    """Each run has this number of epochs; drops of the learning rate stay at the same shares of the run."""
    precision: Precision | None = None
    """Training computes in this arithmetic, instead of 32-true."""
    eval_every: int | None = None
    """Evaluations on the way come after this number of epochs, instead of after each."""
    width: int | None = None
    """The first stage has this number of channels; --scale cpu only."""
    minutes_a_row: float | None = None
    """Each row and seed takes this number of minutes, instead of a number of epochs; --scale cpu only."""
