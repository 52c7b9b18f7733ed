"""Trainings as processes of their own, through the normal command line: killed, stopped, doubled, restarted."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from skewconv import cli
from skewconv.commands import train as command
from skewconv.errors import ArgumentError
from skewconv.train import recipe
from skewconv.train.environment import FILE, Hardware
from skewconv.train.run import open_run
from tests.torch_versions import needs_groups_that_end
from tests.train.runs import TINY_FLAGS, StopAt, assert_identical, environment, finish, rows, start, weights
from tests.waiting import wait_until

# Two processes sum the same gradients in another order: single precision's rounding, carried through 22 steps.
# Rounding is multiplied in a network of width 2 that takes large steps.
TOLERANCE = 1e-3


def gone(pid: int) -> bool:
    """Whether there is no such process any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def saves(file: Path) -> Callable[[], int]:
    """Counts how often a checkpoint was replaced."""
    seen: set[tuple[int, int]] = set()

    def look() -> int:
        with suppress(FileNotFoundError):
            found = file.stat()
            seen.add((found.st_ino, found.st_mtime_ns))
        return len(seen)

    before = look()
    return lambda: look() - before


class Forks:
    """Commands as forks of a process that has imported everything, so that a life costs a second and not five."""

    def __init__(self, cache: Path) -> None:
        command, pipe = [sys.executable, "-m", "tests.train.forks"], subprocess.PIPE
        # Without AMX: virtual machines announce these instructions of mixed precision and then do not have them.
        env = {**environment(cache), "ONEDNN_MAX_CPU_ISA": "AVX2"}
        self.server = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)

    def start(self, *words: str) -> int:
        """Its process id."""
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps(words) + "\n")
        self.server.stdin.flush()
        return self._answer()

    def status(self) -> int:
        """How the last one ended, once it has."""
        return self._answer()

    def _answer(self) -> int:
        assert self.server.stdout is not None
        answer = self.server.stdout.readline()
        assert answer, f"the process that forks ended with status {self.server.wait()}"
        return int(answer)

    def __enter__(self) -> "Forks":
        return self

    def __exit__(self, *error: object) -> None:
        self.server.communicate()


@pytest.fixture(scope="module")
def forks(cache: Path) -> Iterator[Forks]:
    with Forks(cache) as running:
        yield running


@pytest.mark.parametrize(("kills", "epochs"), [(2, 3), pytest.param(10, 22, marks=pytest.mark.slow)])
def test_killed_at_random_moments_a_run_ends_with_the_weights_of_an_uninterrupted_one(kills, epochs, forks, tmp_path):
    # 11 steps an epoch, a checkpoint after each step: no life comes near the end before it is cut off.
    flags = ("--width", "2", "--batch-size", "128", "--eval-every", "5", "--checkpoint-seconds", "0")
    flags = (*flags, "--epochs", str(epochs))
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    chance, progress = random.Random(0), [0]
    for _ in range(kills):
        count, goal = saves(killed / FILE), chance.randrange(0, 6)
        process = forks.start("train", *flags, "--out", str(killed), "--quiet", "--resume")
        wait_until(lambda f=count, n=goal, pid=process: f() >= n or gone(pid), forks.server)  # type: ignore[misc]
        # Anywhere: in the start, inside a step, an evaluation or the writing of a checkpoint.
        time.sleep(chance.uniform(0, 0.1))
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        status = forks.status()
        if status == 0:
            # A busy machine let the run come to its end before this process could kill it: fewer lives, one claim.
            break
        assert status == -signal.SIGKILL
        if (killed / FILE).exists():
            progress.append(open_run(killed).position.step)
    assert progress == sorted(progress)
    assert progress[-1] > 0
    forks.start("train", "--out", str(killed), "--quiet", "--resume")
    assert forks.status() == 0
    forks.start("train", *flags, "--out", str(whole), "--quiet")
    assert forks.status() == 0
    assert_identical(weights(whole), weights(killed))
    assert not list(killed.glob(".*.tmp"))


def test_a_stopped_run_is_saved_and_says_how_to_go_on(cache, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SKEWCONV_CACHE", str(cache))
    monkeypatch.setattr(command, "display_for", lambda quiet: StopAt(5))
    run = tmp_path / "run"
    assert cli.main(["train", *TINY_FLAGS, "--out", str(run), "--quiet"]) == 128 + signal.SIGTERM
    assert f"skewconv train --resume --out {run}" in capsys.readouterr().out
    position = open_run(run).position
    assert (position.step, position.finished) == (6, False)


@pytest.fixture(scope="module")
def one_process(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    forks.start("train", *TINY_FLAGS, "--out", str(run), "--quiet")
    assert forks.status() == 0
    return run


def assert_close(some: Path, others: Path) -> None:
    expected, found = open_run(some).model.state_dict(), open_run(others).model.state_dict()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=TOLERANCE, rtol=TOLERANCE, msg=name)


@needs_groups_that_end
def test_two_processes_agree_with_one_on_the_same_global_batch(one_process, cache, tmp_path):
    run = tmp_path / "run"
    out, _ = finish(start(cache, *TINY_FLAGS, "--devices", "2", "--out", str(run), "--quiet", "--json"))
    record = json.loads(out)
    assert record["results"]["processes"] == 2
    assert record["results"]["steps"] == 22
    assert_close(one_process, run)


@needs_groups_that_end
@pytest.mark.slow
def test_two_processes_stop_together_when_the_first_is_asked_to_while_it_judges(cache, tmp_path):
    run = tmp_path / "run"
    flags = (*TINY_FLAGS, "--devices", "2", "--device", "cpu", "--eval-every", "1", "--out", str(run), "--quiet")
    out, err = finish(start(cache, *flags, fault="the first is asked to stop"), status=128 + signal.SIGTERM)
    assert "Traceback" not in err
    assert f"skewconv train --resume --out {run}" in out
    position = open_run(run).position
    assert position.step == 11
    assert not position.finished


@needs_groups_that_end
@pytest.mark.slow
def test_under_torchrun_a_run_that_lost_a_worker_goes_on_with_the_same_command(one_process, cache, tmp_path):
    run = tmp_path / "run"
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    flags = (*TINY_FLAGS, "--device", "cpu", "--checkpoint-seconds", "0", "--out", str(run), "--resume")
    finish(start(cache, *flags, launcher=launcher, fault="the second dies"), status=1)
    _, err = finish(start(cache, *flags, launcher=launcher))
    assert "going on from the checkpoint of step" in err
    assert_close(one_process, run)


def test_mixed_precision_trains(forks, tmp_path):
    run = tmp_path / "run"
    forks.start("train", *TINY_FLAGS, "--precision", "bf16-mixed", "--out", str(run), "--quiet")
    assert forks.status() == 0
    assert open_run(run).record()["results"]["status"] == "finished"
    losses = [float(row["loss"]) for row in rows(run)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"batch_size": 15}, "--batch-size is 15: it must be a multiple of the number of processes, which is 2"),
        ({"precision": "16-mixed"}, "--precision is '16-mixed': it must be 32-true or bf16-mixed on the CPU"),
    ],
)
def test_what_two_processes_cannot_share_is_refused_before_they_start(settings, reason):
    with pytest.raises(ArgumentError, match=reason):
        Hardware(device="cpu", devices=2).fabric(recipe("digits", **settings))
