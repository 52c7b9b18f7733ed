"""The loop learns with every option and repeats itself bit for bit, and its metrics can be had again.

A run that is made again on one machine, with the same threads, is a repeated computation: exact to the bit.
"""

import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from skewconv import nn as snn
from skewconv.certify import perturb
from skewconv.config import ModelConfig, OptimConfig, RegimeConfig
from skewconv.errors import ArgumentError
from skewconv.nn import lipschitz_upper_bound
from skewconv.progress import Display, Lines
from skewconv.records import read_record
from skewconv.train import fit, recipe
from skewconv.train.data.dataset import epoch_batches, make_splits
from skewconv.train.environment import RECORD
from skewconv.train.run import load, open_run
from skewconv.train.step import evaluate
from tests.train.runs import TINY, StopAt, assert_identical, resume, rows, train, weights
from tests.waiting import Ticking


def test_it_learns_and_plain_lines_tell_what_a_person_wants_to_know(data, tmp_path, capsys):
    config = replace(TINY, epochs=6, model=ModelConfig(width=8))
    outcome = train(config, tmp_path, data, display=Lines())
    said = capsys.readouterr().err
    for word in ("epoch", "loss", "train", "test", "certified (estimate)", "images/s", "left", "100%"):
        assert word in said
    losses = [float(row["loss"]) for row in rows(tmp_path)]
    assert losses[-1] < 0.7 * losses[0]
    assert outcome.metrics is not None
    assert outcome.metrics.clean > 0.6
    assert outcome.position.finished
    assert outcome.position.step == 6 * 11


def test_the_last_smaller_batch_is_trained_on_where_that_is_asked_for(data, tmp_path):
    assert len(data.train) % 128 not in (0, 1)
    config = replace(TINY, epochs=1, loading=replace(TINY.loading, keep_last=True))
    outcome = train(config, tmp_path, data)
    assert outcome.position.step == len(data.train) // 128 + 1
    # An image is met once an epoch, all of them.
    fabric = SimpleNamespace(device=torch.device("cpu"), global_rank=0, world_size=1)
    batches = epoch_batches(config, make_splits(config, data), fabric, epoch=0)
    assert sum(len(labels) for _, labels in batches) == len(data.train)


def test_a_last_batch_that_processes_cannot_share_equally_is_refused(data):
    config = replace(TINY, loading=replace(TINY.loading, keep_last=True, batch_size=128))
    fabric = SimpleNamespace(device=torch.device("cpu"), global_rank=0, world_size=64)
    assert (len(data.train) % 128) % 64
    with pytest.raises(ArgumentError, match="--keep-last is True: it must be off for 64 processes"):
        epoch_batches(config, make_splits(config, data), fabric, epoch=0)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(reference, data, tmp_path):
    torch.manual_seed(123)
    train(TINY, tmp_path / "same", data)
    assert_identical(weights(reference), weights(tmp_path / "same"))
    train(replace(TINY, seed=1), tmp_path / "other", data)
    assert not torch.equal(weights(reference)["model/head.bias"], weights(tmp_path / "other")["model/head.bias"])


def test_the_figures_are_repeated_exactly_from_the_checkpoint(reference, data):
    run = open_run(reference)
    stored = read_record(reference / RECORD)["results"]
    again = evaluate(load(reference), data.test, run.config).plain()
    assert {name: stored[name] for name in again} == again
    assert set(again["certified"]) == {"36/255", "72/255", "108/255", "1"}
    assert again["certified"]["36/255"] <= again["clean"]
    assert again["lipschitz_upper_bound"] == pytest.approx(lipschitz_upper_bound(run.model, (1, 8, 8)), rel=1e-6)


def test_the_last_evaluation_is_time_left_when_the_steps_are_made(data, tmp_path):
    shown: list[str] = []
    display = Display()
    display.show = lambda step, done, text: shown.append(text)
    train(TINY, tmp_path, data, display=display, clock=Ticking(5.0))
    minutes, seconds = map(int, re.search(r"(\d+):(\d+) left", shown[-1]).groups())
    assert 60 * minutes + seconds >= 5


def test_certified_accuracy_is_the_share_of_margins_above_root_two_times_the_bound(reference, data):
    model = load(reference).double()
    images = torch.from_numpy(data.test.images.copy()).double() / 255
    labels = torch.from_numpy(data.test.labels.copy())
    with torch.no_grad():
        logits = model(images)
    right = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -math.inf).amax(1)
    radii = (right - others) / (math.sqrt(2) * lipschitz_upper_bound(model, (1, 8, 8)))
    metrics = evaluate(load(reference), data.test, TINY)
    assert metrics.certified is not None
    for name, radius in zip(metrics.certified, TINY.radii, strict=True):
        # Pairs of logits may have a better constant than root two times the bound, but hardly.
        expected = float((radii >= radius).double().mean())
        assert expected <= metrics.certified[name] <= expected + 0.01
    quick = evaluate(load(reference), data.test, TINY, quick=True)
    assert quick.certified is not None
    assert quick.certified["36/255"] == pytest.approx(metrics.certified["36/255"], abs=0.01)


@pytest.mark.parametrize(
    "config",
    [
        replace(TINY, model=ModelConfig(width=2, head="normalized")),
        replace(TINY, optim=OptimConfig(optimizer="sgd", lr=0.05, schedule="steps", clip=1.0)),
        replace(TINY, model=ModelConfig(width=2, conv="bcop")),
        replace(TINY, model=ModelConfig(width=2, conv="cayley", activation="householder")),
        replace(TINY, regime=RegimeConfig(regime="standard"), model=ModelConfig(arch="resnet-18", width=2)),
    ],
    ids=["normalized", "sgd", "bcop", "cayley", "resnet"],
)
def test_every_option_trains_and_is_judged(config, data, tmp_path):
    outcome = train(replace(config, epochs=1), tmp_path, data)
    assert outcome.metrics is not None
    assert (outcome.metrics.certified is None) == (config.regime.regime != "provable")
    losses = [float(row["loss"]) for row in rows(tmp_path)]
    assert losses[-1] < losses[0]


def test_adversarial_training_attacks_in_training_and_in_the_end(data, tmp_path, monkeypatch):
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


def test_the_spectral_norm_regulariser_lowers_norms_and_products():
    changes = {"epochs": 2, "width": 4, "learn_scale": 0.6}
    models = [fit(recipe("digits", **changes, norm_penalty=weight)).model.eval() for weight in (0.0, 0.3)]
    layers = [[layer for layer in model.modules() if isinstance(layer, snn.SOC2d)] for model in models]
    free, penalised = (sum(layer.proven_norm_bound() for layer in each) for each in layers)
    assert penalised < 0.8 * free
    more, fewer = (sum(layer.polynomial().degree for layer in each) for each in layers)
    assert fewer < more
    with pytest.raises(ArgumentError, match="--learn-scale"):
        recipe("digits", norm_penalty=0.1)
