"""What a user changes of the reduced scale."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Changes:
    """What a user changes of the reduced scale, for all rows alike."""

    epochs: int | None = None
    """Each run passes so many times over the training images, instead of as often as the scale says."""
    width: int | None = None
    """The first stage has so many channels, instead of as many as the scale says."""
    minutes_a_row: float | None = None
    """Each row and seed takes so many minutes, instead of a number of epochs."""
