"""The loop: it learns, repeats itself bit for bit, and its figures can be had again.

A run that is made again on one machine, with the same threads, is a repeated computation: exact to the bit.
"""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from skewconv.config import ModelConfig
from skewconv.errors import ArgumentError
from skewconv.nn import lipschitz_upper_bound
from skewconv.progress import Lines
from skewconv.records import read_record
from skewconv.train.build import epoch_batches, make_splits
from skewconv.train.data import Dataset
from skewconv.train.evaluate import evaluate
from skewconv.train.paths import RECORD
from skewconv.train.run import load, open_run
from tests.train.runs import TINY, assert_identical, rows, train, weights


def test_it_learns(data: Dataset, tmp_path: Path) -> None:
    config = replace(TINY, epochs=6, model=ModelConfig(width=8))
    outcome = train(config, tmp_path, data)
    losses = [float(row["loss"]) for row in rows(tmp_path)]
    assert losses[-1] < 0.7 * losses[0]
    assert outcome.metrics is not None
    assert outcome.metrics.clean > 0.6
    assert outcome.position.finished
    assert outcome.position.step == 6 * 11


def test_the_last_smaller_batch_is_trained_on_where_that_is_asked_for(data: Dataset, tmp_path: Path) -> None:
    assert len(data.train) % 128 not in (0, 1)
    config = replace(
        TINY, epochs=1, loading=replace(TINY.loading, keep_last=True), optim=replace(TINY.optim, accumulate=3)
    )
    outcome = train(config, tmp_path, data)
    assert outcome.position.step == len(data.train) // 128 + 1
    # An image is met once an epoch, all of them.
    fabric = SimpleNamespace(device=torch.device("cpu"), global_rank=0, world_size=1)
    batches = epoch_batches(config, make_splits(config, data), fabric, epoch=0)
    assert sum(len(labels) for _, labels in batches) == len(data.train)


def test_a_last_batch_that_processes_cannot_share_equally_is_refused(data: Dataset) -> None:
    config = replace(TINY, loading=replace(TINY.loading, keep_last=True, batch_size=128))
    fabric = SimpleNamespace(device=torch.device("cpu"), global_rank=0, world_size=64)
    assert (len(data.train) % 128) % 64
    with pytest.raises(ArgumentError, match="--keep-last is True: it must be off for 64 processes"):
        epoch_batches(config, make_splits(config, data), fabric, epoch=0)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(
    reference: Path, data: Dataset, tmp_path: Path
) -> None:
    torch.manual_seed(123)
    train(TINY, tmp_path / "same", data)
    assert_identical(weights(reference), weights(tmp_path / "same"))
    train(replace(TINY, seed=1), tmp_path / "other", data)
    assert not torch.equal(weights(reference)["model/head.bias"], weights(tmp_path / "other")["model/head.bias"])


def test_the_figures_are_repeated_exactly_from_the_checkpoint(reference: Path, data: Dataset) -> None:
    run = open_run(reference)
    stored = read_record(reference / RECORD)["results"]
    again = evaluate(load(reference), data.test, run.config).plain()
    assert {name: stored[name] for name in again} == again
    assert set(again["certified"]) == {"36/255", "72/255", "108/255", "1"}
    assert again["certified"]["36/255"] <= again["clean"]
    assert again["lipschitz_upper_bound"] == pytest.approx(lipschitz_upper_bound(run.model, (1, 8, 8)), rel=1e-6)
    assert read_record(reference / RECORD)["config"]["model"]["width"] == 2


def test_certified_accuracy_is_the_share_of_margins_above_root_two_times_the_bound(
    reference: Path, data: Dataset
) -> None:
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


def test_a_batch_in_parts_gives_the_gradient_of_the_whole(data: Dataset, tmp_path: Path) -> None:
    # Not with SOC, whose power iteration goes a step further with every forward pass, and so with every part.
    whole = replace(TINY, model=ModelConfig(width=2, conv="cayley"))
    train(whole, tmp_path / "whole", data)
    train(replace(whole, optim=replace(whole.optim, accumulate=4)), tmp_path / "parts", data)
    expected, found = load(tmp_path / "whole").state_dict(), load(tmp_path / "parts").state_dict()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=1e-4)


def test_plain_lines_tell_what_a_person_wants_to_know(data: Dataset, tmp_path: Path, capsys: Any) -> None:
    train(TINY, tmp_path, data, display=Lines())
    said = capsys.readouterr().err
    for word in ("epoch", "loss", "train", "test", "certified (estimate)", "images/s", "left", "100%"):
        assert word in said
