"""What a user changes of the recipe of a scale."""

from dataclasses import dataclass

from skewconv.choices import Precision


@dataclass(frozen=True)
class Changes:
    """What a user changes of the recipe of a scale, for all rows alike; the table and every record say it."""

    epochs: int | None = None
    """Epochs of each run (default: as the scale says); drops of the learning rate stay at the same shares of a run."""
    precision: Precision | None = None
    """Arithmetic of training (default: 32-true)."""
    eval_every: int | None = None
    """Epochs between evaluations on the way (default: 1)."""
    width: int | None = None
    """Channels of the first stage (default: as the scale says; --scale cpu only)."""
    minutes_a_row: float | None = None
    """Minutes of each row and seed, instead of a number of epochs (--scale cpu only)."""
