"""Every option of a training: losses, optimizers, layers, networks, regimes, averages of weights and learned norms."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from skewconv import nn as snn
from skewconv.certify import perturb
from skewconv.config import ModelConfig, OptimConfig, RegimeConfig
from skewconv.errors import ArgumentError
from skewconv.train import fit, recipe
from skewconv.train.build import build_model
from skewconv.train.checkpoint import Checkpoint
from skewconv.train.data import Dataset
from skewconv.train.evaluate import evaluate
from skewconv.train.paths import FILE
from skewconv.train.run import open_run
from skewconv.train.step import WeightAverage
from tests.train.runs import TINY, StopAt, assert_identical, digits, resume, rows, train, weights


@pytest.mark.parametrize(
    "config",
    [
        replace(TINY, regime=RegimeConfig(gamma=0.5), model=ModelConfig(width=2, head="normalized")),
        replace(TINY, regime=RegimeConfig(loss="margin", logit_scale=4.0)),
        replace(TINY, optim=OptimConfig(optimizer="sgd", lr=0.05, nesterov=True, schedule="cosine", clip=1.0)),
        replace(TINY, model=ModelConfig(width=2, conv="bcop")),
        replace(TINY, model=ModelConfig(width=2, conv="cayley", activation="householder")),
        replace(TINY, regime=RegimeConfig(regime="standard"), model=ModelConfig(arch="resnet-18", width=2)),
    ],
    ids=["certificate", "margin", "sgd", "bcop", "cayley", "resnet"],
)
def test_every_option_trains_and_is_judged(config: Any, data: Dataset, tmp_path: Path) -> None:
    outcome = train(replace(config, epochs=1), tmp_path, data)
    assert outcome.metrics is not None
    assert (outcome.metrics.certified is None) == (config.regime.regime != "provable")
    losses = [float(row["loss"]) for row in rows(tmp_path)]
    assert losses[-1] < losses[0]


def test_adversarial_training_attacks_in_training_and_in_the_end(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regime = RegimeConfig(regime="adversarial", pgd_steps=2, pgd_restarts=2, attack_images=60, epsilon=0.1)
    config = replace(TINY, epochs=1, regime=regime, model=ModelConfig(arch="resnet-18", conv="standard", width=2))
    data = replace(data, train=data.train.subset(np.arange(384)), test=data.test.subset(np.arange(60)))
    moved: list[float] = []
    original = perturb.fgsm

    def watched(model: Any, images: Tensor, *rest: Any, **options: Any) -> Tensor:
        attacked = original(model, images, *rest, **options)
        moved.append(float((attacked - images).abs().max()))
        return attacked

    monkeypatch.setattr(perturb, "fgsm", watched)
    outcome = train(config, tmp_path, data)
    assert len(moved) == 3
    assert all(0.05 < most <= 0.1 + 1e-6 for most in moved)
    assert outcome.metrics is not None
    assert outcome.metrics.attacked_images == 60
    assert outcome.metrics.attacked is not None
    assert outcome.metrics.attacked <= outcome.metrics.clean + 0.1
    interrupted = tmp_path / "interrupted"
    train(config, interrupted, data, display=StopAt(1))
    resume(interrupted, data)
    assert_identical(weights(tmp_path), weights(interrupted))


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


def test_the_spectral_norm_regulariser_lowers_norms_and_products() -> None:
    changes = {"epochs": 2, "width": 4, "learn_scale": 0.6}
    models = [fit(recipe("digits", **changes, norm_penalty=weight)).model.eval() for weight in (0.0, 0.3)]
    layers = [[layer for layer in model.modules() if isinstance(layer, snn.SOC2d)] for model in models]
    free, penalised = (sum(layer.proven_norm_bound() for layer in each) for each in layers)
    assert penalised < 0.8 * free
    more, fewer = (sum(layer.polynomial().degree for layer in each) for each in layers)
    assert fewer < more
    with pytest.raises(ArgumentError, match="--learn-scale"):
        recipe("digits", norm_penalty=0.1)
