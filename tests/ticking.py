"""Time that passes with every look at the clock: budgets of minutes, the same on every machine."""


class Ticking:
    """A clock that moves with every look at it."""

    def __init__(self, tick: float = 0.2) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now
