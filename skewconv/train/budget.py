"""Progress of a run as a share of its steps, or of its minutes, which are planned anew after every step."""

import time
from collections.abc import Callable

# Kept for what is not measured: the last lines printed, and the end of the interpreter.
_SAFETY = 0.01
_EXIT_SECONDS = 1.0
# The first steps build kernels and caches, and are no measure of the pace.
_WARM_UP_STEPS = 2
_DECAY = 0.1


class Pace:
    """Seconds per step, as an exponential moving average."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._count, self._last = clock, 0, clock()
        self.seconds = 0.0

    def pause_ended(self) -> None:
        """The time since the last step (an evaluation, a checkpoint) is no step."""
        self._last = self._clock()

    def tick(self) -> None:
        """A step ended."""
        now = self._clock()
        latest, self._last, self._count = now - self._last, now, self._count + 1
        self.seconds += (1.0 if self._count <= _WARM_UP_STEPS else _DECAY) * (latest - self.seconds)


class StepPlan:
    """A fixed number of steps: `done` depends on the step alone, so a resumed run repeats it."""

    def __init__(self, steps: int, step: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps, self.step, self.pace = steps, step, Pace(clock)
        self._clock, self._first, self._began = clock, step, clock()

    @property
    def done(self) -> float:
        """step / steps."""
        return self.step / self.steps

    def advance(self) -> None:
        """Count a step."""
        self.step += 1
        self.pace.tick()

    def seconds_left(self) -> float:
        """Steps left, at the average pace of this process, the evaluations between them included."""
        made = self.step - self._first
        return (self.steps - self.step) * (self._clock() - self._began) / made if made else 0.0


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
        #: seconds kept for the last evaluation and checkpoint
        self.reserve = 0.0

    @property
    def spent(self) -> float:
        """Seconds of the budget that are gone."""
        return self._clock() - self.began

    def advance(self) -> None:
        """Count a step, and plan the rest."""
        self.pace.tick()
        steps_left = self.time_to_train() / self.pace.seconds if self.pace.seconds > 0 else 1.0
        # Less than half a step to go: another one would end further from the promise than none.
        self.done = 1.0 if steps_left < 0.5 else self.done + (1 - self.done) / max(1.0, steps_left + 1)

    def time_to_train(self) -> float:
        """Seconds left for steps."""
        return self.seconds * (1 - _SAFETY) - _EXIT_SECONDS - self.reserve - self.spent

    def seconds_left(self) -> float:
        """Seconds until the budget is spent."""
        return max(0.0, self.seconds - self.spent)
