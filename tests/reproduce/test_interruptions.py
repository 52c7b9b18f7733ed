"""Stopped however, the same command goes on where it was, and ends with what an uninterrupted one has."""

import os
import signal
from pathlib import Path

import pytest

from skewconv.train.checkpoint import FILE
from skewconv.train.run import open_run
from tests.train.runs import assert_identical, weights
from tests.train.test_processes import Forks, saves, wait_until

# 99 steps a row and a checkpoint after each, so that a life is cut off well before its end.
WORDS = ("table2", "--data", "digits", "--width", "2", "--epochs", "9", "--seeds", "0", "--checkpoint-seconds", "0")
ROWS = ("lipconvnet-5/soc", "lipconvnet-5/cayley")


@pytest.fixture(scope="module")
def whole(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out"
    with Forks(cache) as forks:
        forks.start("reproduce", *WORDS, "--rows", *ROWS, "--quiet", "--out", str(out))
        assert forks.status() == 0
    return out


# tests/train has them for a single run, and test_command.py a signal between two rows.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 128 + signal.SIGINT)],
)
def test_interrupted_in_the_first_row_and_in_the_second_it_ends_as_if_nothing_had_been(
    number: signal.Signals, status: int, whole: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with Forks(cache) as forks:
        for row in ROWS:
            count = saves(out / row / "seed-0" / FILE)
            process = forks.start("reproduce", *WORDS, "--rows", *ROWS, "--quiet", "--out", str(out))
            wait_until(lambda count=count: count() >= 3, forks.server)  # type: ignore[misc]
            os.kill(process, number)
            assert forks.status() == status
            position = open_run(out / row / "seed-0").position
            assert 0 < position.step < 99
        forks.start("reproduce", *WORDS, "--rows", *ROWS, "--quiet", "--out", str(out))
        assert forks.status() == 0
    for row in ROWS:
        assert_identical(weights(whole / row / "seed-0"), weights(out / row / "seed-0"))
    for ending in ("md", "csv", "tex"):
        assert (out / f"table2.{ending}").read_text() == (whole / f"table2.{ending}").read_text()
