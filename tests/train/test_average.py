"""An average of the weights: its formula, and that it is what a run is judged by, leaves behind and goes on with."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from skewconv.train.build import build_model
from skewconv.train.checkpoint import Checkpoint
from skewconv.train.evaluate import evaluate
from skewconv.train.paths import FILE
from skewconv.train.run import open_run
from skewconv.train.step import WeightAverage
from tests.train.runs import TINY, StopAt, assert_identical, digits, resume, train, weights

AVERAGED = replace(TINY, optim=replace(TINY.optim, average=0.8))


def test_the_average_is_the_weighted_sum_of_all_weights_so_far() -> None:
    layer = nn.BatchNorm1d(3)
    history = [layer.weight.detach().double().clone()]
    average, shares = WeightAverage(layer, decay=0.8), [1.0]
    for step in range(1, 60):
        with torch.no_grad():
            layer.weight.copy_(torch.randn(3, generator=torch.Generator().manual_seed(step)))
            layer.running_mean.fill_(float(step))  # type: ignore[union-attr]
        average.update(layer)
        history.append(layer.weight.detach().double().clone())
        decay = min(0.8, step / (9 + step))
        shares = [share * decay for share in shares] + [1 - decay]
    assert sum(shares) == pytest.approx(1.0)
    expected = sum(share * weight for share, weight in zip(shares, history, strict=True))
    assert torch.allclose(average.model.weight.double(), expected, atol=1e-5)
    assert average.model.running_mean.tolist() == [59.0] * 3
    assert not any(p.requires_grad for p in average.model.parameters())


def test_a_run_is_judged_by_its_average_and_ends_the_same_when_it_was_stopped(tmp_path: Path) -> None:
    data = digits(tmp_path)
    whole, halves, plain = (tmp_path / name for name in ("whole", "halves", "plain"))
    outcome = train(AVERAGED, whole, data)
    assert train(AVERAGED, halves, data, display=StopAt(7)).metrics is None
    resume(halves, data)
    assert_identical(weights(whole), weights(halves))
    # Training itself does not see the average.
    train(TINY, plain, data)
    checkpoint, model = Checkpoint(whole / FILE), build_model(AVERAGED, open_run(whole).data)
    checkpoint.restore_model(model, trained=True)
    unaveraged = open_run(plain).model.state_dict()
    assert_identical(model.state_dict(), unaveraged)
    judged = open_run(whole).model
    assert not torch.equal(judged.state_dict()["head.bias"], unaveraged["head.bias"])
    assert outcome.metrics is not None
    assert evaluate(judged, data.test, AVERAGED).plain() == outcome.metrics.plain()
