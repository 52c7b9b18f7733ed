"""Several seeds: folders of their own, one record with means and deviations, and what is missing is made later."""

import json
import shutil
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from skewconv import cli
from skewconv.records import read_record
from skewconv.train.environment import SEEDS
from skewconv.train.loop import DivergedError, Trainer
from skewconv.train.session import stored_seeds, summary
from tests.train.runs import TINY_FLAGS

FLAGS = (*TINY_FLAGS[:-1], "1", "--quiet")


def train(*words: object) -> int:
    return cli.main(["train", *map(str, words)])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds") / "runs"
    assert train(*FLAGS, "--seeds", 2, "--out", folder) == 0
    return folder


@pytest.fixture
def runs(two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two, tmp_path / "runs"))


def test_each_seed_has_a_run_and_the_record_their_mean_and_deviation(runs):
    single = [read_record(runs / f"seed-{seed}" / "record.json") for seed in (0, 1)]
    assert [record["config"]["seed"] for record in single] == [0, 1]
    results = read_record(runs / SEEDS)["results"]
    assert (results["status"], results["seeds"]) == ("finished", 2)
    clean = [record["results"]["clean"] for record in single]
    assert clean[0] != clean[1]
    assert results["clean"] == pytest.approx(fmean(clean))
    assert results["deviation"]["clean"] == pytest.approx(stdev(clean))
    certified = [record["results"]["certified"]["36/255"] for record in single]
    assert results["certified"]["36/255"] == pytest.approx(fmean(certified))
    assert results["deviation"]["certified"]["36/255"] == pytest.approx(stdev(certified))


def test_resuming_makes_what_is_missing_and_nothing_else(runs, capsys):
    kept = (runs / "seed-0" / "checkpoint.safetensors").stat().st_mtime_ns
    shutil.rmtree(runs / "seed-1")
    assert train("--resume", "--out", runs, "--seeds", 3, "--json", "--quiet") == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["ended"] == [0, 1, 2]
    assert (runs / "seed-0" / "checkpoint.safetensors").stat().st_mtime_ns == kept
    # Without any other flag the folder itself says what was asked for.
    assert train("--resume", "--out", runs) == 0
    out = capsys.readouterr().out
    assert "digits: 3 seeds, mean ± standard deviation" in out
    assert f"{100 * results['clean']:.2f} ± {100 * results['deviation']['clean']:.2f} %" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seeds", "2"), "already holds a run"),
        (("--resume", "--seeds", "1"), "--seeds is 1: it must be at least 2"),
        (("--resume", "--width", "4"), "--width was 2 and is now 4"),
        (("--resume", "--seeds", "0"), "--seeds is 0: it must be at least 1"),
    ],
)
def test_other_runs_are_refused_and_nothing_is_written(words, said, runs, capsys):
    before = (runs / SEEDS).read_bytes()
    assert train(*words, "--out", runs) == 2
    assert said in capsys.readouterr().err
    assert (runs / SEEDS).read_bytes() == before


def test_a_single_run_is_not_taken_for_one_of_several(runs, capsys):
    assert train("--resume", "--out", runs / "seed-0", "--seeds", 2) == 2
    assert "holds a single run" in capsys.readouterr().err


def test_a_seed_that_diverged_is_a_result_and_there_is_no_mean(runs, monkeypatch, capsys):
    def diverge(self: Trainer) -> Any:
        raise DivergedError("the loss is nan at step 3")

    monkeypatch.setattr(Trainer, "fit", diverge)
    assert train("--resume", "--out", runs, "--seeds", 3, "--quiet") == 0
    assert "diverged: there is no mean" in capsys.readouterr().out
    results = read_record(runs / SEEDS)["results"]
    assert (results["status"], results["diverged"], "clean" in results) == ("diverged", [2], False)


def test_one_seed_has_no_deviation():
    found = summary(2, {0: {"status": "finished", "split": "test", "images": 5, "clean": 0.5}})
    assert (found["status"], found["clean"], found["deviation"]["clean"]) == ("unfinished", 0.5, None)


def test_what_another_process_ended_meanwhile_is_kept(runs):
    # This process knows of the first seed alone; the second lies on the disk.
    first = read_record(runs / "seed-0" / "record.json")["results"]
    assert stored_seeds(runs).write({0: first})["results"]["ended"] == [0, 1]
