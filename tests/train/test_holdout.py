"""Held-out training images: a fixed, fair choice that nobody copies, trains on, or takes for the test images.

A run that is resumed or judged again on one machine, with the same threads, is a repeated computation: exact.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from skewconv.config import LoadingConfig
from skewconv.errors import ArgumentError
from skewconv.records import read_record
from skewconv.train import loop
from skewconv.train.data import Split
from skewconv.train.data.dataset import hold_out, make_splits
from skewconv.train.run import RECORD
from tests.train.runs import TINY, TINY_FLAGS, rows, train

HOLDOUT = replace(TINY, loading=replace(TINY.loading, holdout=300))


@pytest.mark.parametrize("count", [1, 300, 1437])
def test_the_two_parts_are_the_whole_and_classes_keep_their_shares(count, data):
    rest, held = hold_out(data.train, count)
    assert len(held) == count
    assert sorted([*rest.index, *held.index]) == list(range(1438))
    expected = np.bincount(data.train.labels) * count / 1438
    found = np.bincount(data.train.labels[held.index], minlength=10)
    assert np.abs(found - expected).max() <= 1
    assert set(held.index) <= set(hold_out(data.train, 1437)[1].index)


def test_nothing_held_out_is_trained_on_and_no_test_image_is_looked_at(data, tmp_path, monkeypatch):
    trained: set[int] = set()
    original = Split.take

    def watched(self: Split, index: Any) -> Any:
        if len(self) == 1138:
            trained.update(self.index[index].tolist())
        return original(self, index)

    monkeypatch.setattr(Split, "take", watched)
    unseen = replace(data, test=Split(data.test.images[:1], data.test.labels[:1]))
    outcome = train(HOLDOUT, tmp_path, unseen)
    assert outcome.metrics is not None
    assert outcome.metrics.images == 300
    held = make_splits(HOLDOUT, data).eval
    assert len(trained) > 1000
    assert not trained & set(held.index.tolist())
    # 1138 images in batches of 128.
    assert outcome.position.step == 2 * 8


@pytest.mark.parametrize("count", [1311, 10**9])
def test_more_than_can_be_spared_is_refused_before_any_work(count, data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "build_model", None)
    config = replace(TINY, loading=replace(TINY.loading, holdout=count))
    with pytest.raises(ArgumentError, match=f"holdout is {count}: .* 1438 .* at most 1310 .* batch of 128"):
        train(config, tmp_path, data)
    with pytest.raises(ArgumentError, match="holdout is -1: it must be at least 0"):
        LoadingConfig(holdout=-1)


def test_the_commands_say_whose_figures_they_print(cache, data, tmp_path, monkeypatch, call):
    monkeypatch.setenv("SKEWCONV_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    status, _, err = call("train", *TINY_FLAGS, "--holdout", "1438", "--out", "run")
    assert (status, "holdout is 1438" in err, list(tmp_path.iterdir())) == (2, True, [])
    status, out, err = call("train", *TINY_FLAGS, "--holdout", "300", "--out", "run")
    assert status == 0
    assert "validation: held-out training images" in out
    assert "test" not in out
    assert "  validation " in err
    logged = rows(tmp_path / "run")
    assert any(row["validation_clean"] for row in logged)
    assert not any("test" in name for name in logged[0])
    stored = read_record(tmp_path / "run" / RECORD)["results"]
    _, out, _ = call("evaluate", "run", "--json")
    results = json.loads(out)["results"]
    assert results == {name: stored[name] for name in results}
    assert (results["split"], results["images"]) == ("validation", 300)
    _, out, _ = call("evaluate", "run", "--split", "test", "--json")
    results = json.loads(out)["results"]
    assert (results["split"], results["images"]) == ("test", 359)
    _, out, _ = call("evaluate", "run", "--split", "test")
    assert "test images" in out
    assert "validation" not in out


def test_a_run_that_held_nothing_out_has_no_validation_images(cache, reference, monkeypatch, call):
    monkeypatch.setenv("SKEWCONV_CACHE", str(cache))
    status, _, err = call("evaluate", str(reference), "--split", "validation")
    assert status == 2
    assert "held no images out: train with --holdout" in err
    assert err.count("\n") == 1
