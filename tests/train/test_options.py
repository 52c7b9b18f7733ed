"""Every option of a training: losses, optimisers, layers, networks and regimes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from skewconv.certify import perturb
from skewconv.config import ModelConfig, OptimConfig, RegimeConfig
from skewconv.train.data import Dataset
from tests.train.runs import TINY, StopAt, assert_identical, resume, rows, train, weights


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
