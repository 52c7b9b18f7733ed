"""A budget of minutes ends on time by its clock, with room for checkpoints and the last evaluation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skewconv.progress import Lines
from skewconv.train import loop
from skewconv.train.data import Dataset
from tests.ticking import Ticking
from tests.train.runs import TINY, rows, train


def test_a_budget_ends_on_time_by_its_clock_and_with_a_small_rate(data: Dataset, tmp_path: Path) -> None:
    clock = Ticking()
    config = replace(TINY, epochs=None, minutes=0.5)
    outcome = train(config, tmp_path, data, clock=clock, started=0.0)
    assert clock.now == pytest.approx(30, rel=0.05)
    assert outcome.position.finished
    assert outcome.position.done == 1.0
    rates = [float(row["lr"]) for row in rows(tmp_path)]
    assert rates[-1] < 0.2 * max(rates)


def test_a_budget_leaves_room_for_slow_checkpoints(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_last_evaluation_takes_a_small_share_of_a_budget(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
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
