"""Progress of a run as a share of its steps, or of its minutes, which are planned anew after every step."""

import time
from collections import deque
from collections.abc import Callable
from statistics import median

# Kept for what is not measured: the last lines printed, and the end of the interpreter.
_SAFETY = 0.01
_EXIT_SECONDS = 1.0
# The first steps build kernels and caches, and are no measure of the pace.
_WARM_UP_STEPS = 2
_SETTLED_STEPS = 10
_DECAY = 0.1
_RECENT_STEPS = 9


class Pace:
    """Seconds per step, as an exponential moving average."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._count, self._last = clock, 0, clock()
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)
        self.seconds: float | None = None

    @property
    def typical(self) -> float:
        """The median of the latest steps: it follows a machine that slows down, and overlooks a step that stalls."""
        return median(self._recent)

    @property
    def settled(self) -> bool:
        """True once enough steps were made to trust the average."""
        return self._count >= _SETTLED_STEPS

    def pause_ended(self) -> None:
        """The time since the last step (an evaluation, a checkpoint) is no step."""
        self._last = self._clock()

    def tick(self) -> None:
        """A step ended."""
        now = self._clock()
        latest, self._last, self._count = now - self._last, now, self._count + 1
        self._recent.append(latest)
        if self.seconds is None or self._count <= _WARM_UP_STEPS:
            self.seconds = latest
        else:
            self.seconds += _DECAY * (latest - self.seconds)


class StepPlan:
    """A fixed number of steps: `done` depends on the step alone, so a resumed run repeats it."""

    def __init__(self, steps: int, step: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps, self.step, self.pace = steps, step, Pace(clock)

    @property
    def done(self) -> float:
        """step / steps."""
        return self.step / self.steps

    def advance(self) -> None:
        """Count a step."""
        self.step += 1
        self.pace.tick()

    def seconds_left(self) -> float | None:
        """Steps left, at the present pace."""
        return None if self.pace.seconds is None else (self.steps - self.step) * self.pace.seconds


class TimePlan:
    """A budget of seconds: after every step the rest of the schedule is spread over the steps for which time is left.

    If the pace changes the schedule only bends: it reaches 1 when the time is up.

    Args:
        seconds: the whole budget.
        began: start of the budget by the clock; earlier than now by what an earlier process spent.
        done: the share of the schedule that is behind.
        clock: seconds that only grow.
    """

    def __init__(self, seconds: float, *, began: float, done: float, clock: Callable[[], float]) -> None:
        self.seconds, self.began, self.done = seconds, began, done
        self._clock, self.pace = clock, Pace(clock)
        self._evaluation = self._rest = 0.0
        self._pace_then: float | None = None

    @property
    def spent(self) -> float:
        """Seconds of the budget that are gone."""
        return self._clock() - self.began

    def expect_ending(self, evaluation: float, rest: float = 0.0) -> None:
        """Keep time for what comes after the last step: the last evaluation, measured now, and the rest."""
        self._evaluation, self._rest, self._pace_then = evaluation, rest, None

    @property
    def reserve(self) -> float:
        """Seconds kept for the ending: more if steps have become slower since it was measured."""
        if self._pace_then is None:
            return self._evaluation + self._rest
        # A machine may also recover before the end: were the factor not bounded, the run would end far too early.
        return self._evaluation * min(max(self.pace.typical / self._pace_then, 0.5), 4.0) + self._rest

    def advance(self) -> None:
        """Count a step, and plan the rest."""
        self.pace.tick()
        if self._pace_then is None and self.pace.settled:
            self._pace_then = self.pace.typical
        left, step = self.time_to_train(), self.pace.seconds or 0.0
        steps_left = left / step if step > 0 else 1.0
        # Less than half a step to go: another one would end further from the promise than none.
        self.done = 1.0 if steps_left < 0.5 else self.done + (1 - self.done) / max(1.0, steps_left + 1)

    def time_to_train(self) -> float:
        """Seconds left for steps."""
        return self.seconds * (1 - _SAFETY) - _EXIT_SECONDS - self.reserve - self.spent

    def seconds_left(self) -> float | None:
        """Seconds until the budget is spent."""
        return max(0.0, self.seconds - self.spent)
