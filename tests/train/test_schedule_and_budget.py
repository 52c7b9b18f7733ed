"""Schedules run from start to end whatever the pace; a budget of minutes ends on time, by a clock moved by hand."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from skewconv.config import OptimConfig
from skewconv.progress import Lines
from skewconv.train import loop
from skewconv.train.step import Plan, lr_factor
from tests.train.runs import TINY, rows, train
from tests.waiting import Ticking


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_cycle_rises_to_the_full_rate_and_falls_to_nothing():
    rates = [lr_factor(OptimConfig(), step / 1000) for step in range(1001)]
    assert rates[0] == pytest.approx(0.05)
    assert rates[200] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert all(a < b for a, b in pairwise(rates[:201]))
    assert all(a > b for a, b in pairwise(rates[200:]))


def test_steps_are_counted_and_a_resumed_plan_goes_on():
    plan = Plan(10, clock=Clock())
    shares = []
    for _ in range(10):
        plan.advance()
        shares.append(plan.done)
    assert shares == [step / 10 for step in range(1, 11)]
    assert Plan(10, step=4).done == 0.4


def test_the_pace_forgets_the_warm_up_and_leaves_out_pauses_which_are_time_left():
    clock = Clock()
    plan = Plan(200, step=10, clock=clock)
    for seconds in (30.0, 10.0, *[1.0] * 98):
        clock.now += seconds
        plan.advance()
        clock.now += 4
        plan.pause_ended()
    assert plan.pace == pytest.approx(1.0, rel=1e-3)
    plan.reserve = 70
    assert plan.seconds_left() == pytest.approx(90 * 5 + 70, rel=0.01)


def drive(
    budget: float,
    step_seconds: Callable[[float], float],
    *,
    evaluation: float = 0.0,
    pauses: tuple[float, ...] = (),
) -> tuple[float, list[float]]:
    """Train by the plan: the seconds it took, the last evaluation included, and the shares done before each step."""
    clock = Clock()
    plan = Plan(seconds=budget, clock=clock)
    plan.reserve = evaluation
    shares, pending = [], list(pauses)
    while plan.done < 1:
        shares.append(plan.done)
        clock.now += step_seconds(clock.now - 1000)
        plan.advance()
        if pending and clock.now - 1000 >= pending[0]:
            pending.pop(0)
            clock.now += 5
            plan.pause_ended()
    return clock.now - 1000 + evaluation, shares


PACES = {
    "steady": lambda spent: 0.5,
    "slow start": lambda spent: 5.0 if spent < 10 else 0.5,
    "twice as slow half way": lambda spent: 0.5 if spent < 600 else 1.0,
    "ten times as fast half way": lambda spent: 1.0 if spent < 600 else 0.1,
    "large": lambda spent: 20.0,
    "uneven": lambda spent: 0.2 + 0.6 * ((spent * 7.3) % 1),
    "nearly stopped for a while": lambda spent: 30.0 if 600 < spent < 800 else 0.5,
}


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("evaluation", [0.0, 60.0])
def test_a_budget_is_kept_within_five_percent_and_the_schedule_completes(pace, evaluation):
    took, shares = drive(1200, PACES[pace], evaluation=evaluation, pauses=(200, 500, 900))
    assert took == pytest.approx(1200, rel=0.05)
    assert all(a < b for a, b in pairwise(shares))
    # The schedule ends with small rates, not with a jump from the middle.
    assert shares[-1] > 0.9
    assert max(b - a for a, b in pairwise(shares)) < 0.1


def test_a_budget_too_small_for_one_step_makes_one_and_stops():
    _, shares = drive(1.0, PACES["large"])
    assert shares == [0.0]


def test_a_resumed_budget_remembers_what_was_spent():
    clock = Clock()
    plan = Plan(seconds=100, began=clock() - 60, done=0.6, clock=clock)
    steps = 0
    while plan.done < 1:
        clock.now += 1
        plan.advance()
        steps += 1
    assert 60 + steps == pytest.approx(100, rel=0.05)


def test_a_budget_ends_on_time_by_its_clock_and_with_a_small_rate(data, tmp_path):
    clock = Ticking()
    config = replace(TINY, epochs=None, minutes=0.5)
    outcome = train(config, tmp_path, data, clock=clock, started=0.0)
    assert clock.now == pytest.approx(30, rel=0.05)
    assert outcome.position.finished
    assert outcome.position.done == 1.0
    rates = [float(row["lr"]) for row in rows(tmp_path)]
    assert rates[-1] < 0.2 * max(rates)


def test_a_budget_leaves_room_for_slow_checkpoints(data, tmp_path, monkeypatch):
    clock = Ticking()
    original = loop.save

    def slow(*arguments: Any) -> None:
        clock.now += 2
        original(*arguments)

    monkeypatch.setattr(loop, "save", slow)
    train(replace(TINY, epochs=None, minutes=0.5), tmp_path, data, clock=clock, started=0.0)
    assert clock.now == pytest.approx(30, rel=0.05)


class SlowEvaluation(Ticking):
    """Every image that is evaluated takes a tenth of a second."""

    def slow(self, original: Any) -> Any:
        def slowly(model: Any, split: Any, config: Any, *, images: int | None = None, **options: Any) -> Any:
            self.now += 0.1 * (len(split) if images is None else images)
            return original(model, split, config, images=images, **options)

        return slowly


def test_the_last_evaluation_takes_a_small_share_of_a_budget(data, tmp_path, monkeypatch, capsys):
    clock = SlowEvaluation()
    monkeypatch.setattr(loop, "evaluate", clock.slow(loop.evaluate))
    config = replace(TINY, epochs=None, minutes=1.0, eval_every=1000)
    config = replace(config, loading=replace(config.loading, eval_batch_size=10))
    outcome = train(config, tmp_path, data, clock=clock, started=0.0, display=Lines())
    assert clock.now == pytest.approx(60, rel=0.05)
    # All of them would take 60% of the budget.
    assert outcome.metrics is not None
    assert 30 <= outcome.metrics.images <= 0.08 * 60 / 0.1 < 0.5 * len(data.test)
    assert f"takes {outcome.metrics.images:,} of {len(data.test)} images" in capsys.readouterr().err
