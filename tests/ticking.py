"""Time that passes as often as somebody looks: budgets of minutes, the same on every machine."""


class Ticking:
    """A clock that moves with every look at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.05
        return self.now
