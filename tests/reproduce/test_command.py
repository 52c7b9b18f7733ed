"""skewconv reproduce from end to end: on the digits, tiny, through the same code as the real tables."""

import itertools
import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filelock
import pytest
import torch
from torch import nn

from skewconv import cli
from skewconv.nn import MaxMin, SOC2d
from skewconv.ops import dense_jacobian
from skewconv.records import read_record
from skewconv.reproduce import rows as reduced
from skewconv.reproduce import study
from skewconv.train import step
from skewconv.train.environment import FILE
from skewconv.train.loop import DivergedError, Trainer
from skewconv.train.run import open_run
from tests.train.runs import assert_identical, weights
from tests.waiting import Ticking

pytestmark = pytest.mark.usefixtures("_beside_the_digits")
ROWS = ("lipconvnet-5/soc", "lipconvnet-5/bcop")
# 5 steps an epoch: a row takes a second.
TINY = ("--data", "digits", "--width", "2", "--epochs", "1")


def call(capsys: Any, *words: str, rows: tuple[str, ...] = ROWS) -> tuple[int, str, str]:
    status = cli.main(["reproduce", "table2", *TINY, "--rows", *rows, "--out", "out", "--quiet", *words])
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture(scope="module")
def finished(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both rows with one seed."""
    out = tmp_path_factory.mktemp("finished") / "out"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SKEWCONV_CACHE", str(digits_run.parent / "cache"))
        words = ["reproduce", "table2", *TINY, "--rows", *ROWS, "--out", str(out), "--quiet", "--seeds", "0"]
        assert cli.main(words) == 0
    return out


@pytest.fixture
def out(finished: Path) -> Path:
    return Path(shutil.copytree(finished, "out"))


def test_each_row_has_a_run_a_record_and_a_line_in_every_table(out: Path) -> None:
    for row in ROWS:
        record = read_record(out / "records" / f"{row.replace('/', '-')}-0.json")
        results = record["results"]
        assert (record["kind"], record["seed"], results["row"], results["scale"]) == ("reproduce", 0, row, "cpu")
        assert results["command"] == (
            f"skewconv reproduce table2 --scale cpu --data digits --epochs 1 --width 2 --rows {row} --seeds 0"
        )
        assert (results["status"], results["images"], record["config"]["model"]["width"]) == ("finished", 359, 2)
        run = open_run(out / row / "seed-0")
        assert run.position.finished
        assert run.record()["results"]["certified"] == results["certified"]
        assert f"{100 * results['clean']:.2f}"[:4] in (out / "table2.md").read_text()
    jacobian = read_record(out / "records" / "lipconvnet-5-soc-0.json")["results"]["jacobian"]
    assert 0 < jacobian["norm_estimate"] <= jacobian["norm_upper_bound"] <= 2.1
    assert jacobian["truncation_error"] < 1e-5


def test_what_is_finished_is_not_run_again_and_new_seeds_are_added(out: Path, capsys: Any) -> None:
    files = [out / row / "seed-0" / FILE for row in ROWS]
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files]
    status, said, _ = call(capsys, "--seeds", "0", "1", rows=ROWS[:1])
    assert status == 0
    assert "| lipconvnet-5 | soc | 0, 1 |" in said
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files] == before
    # A later --width takes the place of the first.
    status, _, err = call(capsys, "--seeds", "0", "--width", "4")
    assert (status, "width was 2 and is now 4" in err) == (2, True)


def test_the_list_says_what_is_done_and_what_is_left(out: Path, capsys: Any) -> None:
    status, said, _ = call(capsys, "--seeds", "0", "1", "--list")
    assert status == 0
    assert said.count("finished") == 2
    assert said.count("not begun") == 2
    assert "time not known" in said
    status, said, _ = call(capsys, "--seeds", "0", "1", "--list", "--json")
    document = json.loads(said)
    assert [(row["row"], row["seed"], row["done"]) for row in document["rows"]] == [
        *((ROWS[0], 0, 1.0), (ROWS[0], 1, 0.0), (ROWS[1], 0, 1.0), (ROWS[1], 1, 0.0))
    ]
    assert document["rows"][1]["record"] is None


def test_times_are_measured_apart_and_belong_to_what_was_measured(
    out: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study.os, "getloadavg", lambda: (1.5, 1.0, 1.0))
    status, said, _ = call(capsys, "--seeds", "0", "--time")
    assert status == 0
    assert said.count("(CPU)") == 2
    record = read_record(out / "time.json")
    assert not record["results"]["quiet"]
    assert record["results"]["rows"][ROWS[0]]["steps_an_epoch"] == 11
    _, said, _ = call(capsys, "--seeds", "0", "1", "--list")
    assert "left in all" in said
    words = ["reproduce", "table2", "--data", "digits", "--width", "4", "--epochs", "1", "--out", "out", "--list"]
    assert cli.main([*words, "--rows", "lipconvnet-10/soc"]) == 0
    assert "time not known" in capsys.readouterr().out


def test_a_row_that_diverges_is_recorded_as_such_and_the_others_go_on(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = Trainer.fit

    def diverging(self: Trainer) -> Any:
        if self.config.model.conv == "soc":
            self._save()
            raise DivergedError("the loss is nan")
        return fit(self)

    monkeypatch.setattr(Trainer, "fit", diverging)
    status, said, _ = call(capsys, "--seeds", "0")
    assert status == 0
    assert "| lipconvnet-5 | soc | 0 | diverged |" in said
    assert read_record("out/records/lipconvnet-5-soc-0.json")["results"]["status"] == "diverged"
    assert read_record("out/records/lipconvnet-5-bcop-0.json")["results"]["status"] == "finished"


def test_a_row_that_another_process_has_in_hand_is_left_to_it(capsys: Any) -> None:
    folder = Path("out") / ROWS[0] / "seed-0"
    folder.mkdir(parents=True)
    words = ["reproduce", "table2", *TINY, "--rows", *ROWS, "--out", "out", "--seeds", "0"]
    with filelock.FileLock(folder / ".lock"):
        assert cli.main(words) == 0
    said = capsys.readouterr()
    assert "another process has it in hand" in said.err
    assert "| lipconvnet-5 | soc |  | not run |" in said.out
    assert Path("out/records/lipconvnet-5-bcop-0.json").exists()
    assert cli.main(words) == 0
    assert Path("out/records/lipconvnet-5-soc-0.json").exists()


def test_a_signal_in_the_last_evaluation_of_a_row_stops_before_the_next(
    finished: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Trainer._finish

    def signalled(self: Trainer, logs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return finish(self, logs)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_finish", signalled)
        status, _, said = call(capsys, "--seeds", "0")
    assert status == 128 + signal.SIGTERM
    assert "the same command resumes" in said
    # The evaluation ends at its next batch, so that the row has its weights and not yet its figures.
    assert not Path("out/records/lipconvnet-5-soc-0.json").exists()
    assert call(capsys, "--seeds", "0")[0] == 0
    for row in ROWS:
        assert_identical(weights(finished / row / "seed-0"), weights(Path("out") / row / "seed-0"))


def test_the_record_holds_the_course_of_the_run(capsys: Any) -> None:
    assert call(capsys, "--seeds", "0", "--epochs", "3", rows=ROWS[:1])[0] == 0
    results = read_record("out/records/lipconvnet-5-soc-0.json")["results"]
    points = results["curve"]
    assert [point["epoch"] for point in points] == [1, 2, 3]
    assert all(0 <= point["certified"] <= point["clean"] <= 1 for point in points)
    assert 0 < points[0]["minutes"] < points[1]["minutes"] < points[2]["minutes"]
    # The last evaluation takes all images, and is the result; the log keeps six digits.
    assert points[2]["clean"] == pytest.approx(results["clean"], rel=1e-5)


def test_minutes_take_the_place_of_epochs(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "time", SimpleNamespace(monotonic=Ticking()))
    words = ["reproduce", "table2", "--data", "digits", "--width", "2", "--minutes-a-row", "0.3", "--seeds", "0"]
    assert cli.main([*words, "--rows", "lipconvnet-5/soc", "--out", "out", "--quiet"]) == 0
    assert "minutes 0.3 (none)" in capsys.readouterr().out


@pytest.mark.parametrize(("table", "column"), [("table3", "clean"), ("table4", "attacked")])
def test_tables_3_and_4_run_too(table: str, column: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduced, "_ATTACKED_IMAGES", 4)
    # Ten times fifty steps have tests of their own.
    monkeypatch.setattr(step, "pgd_survivors", lambda model, x, labels, *_: model(x).argmax(1) == labels)
    words = ["reproduce", table, *TINY, "--rows", "resnet-18/standard", "--out", "out", "--quiet", "--json"]
    assert cli.main(words) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert 0 <= row["record"]["results"][column] <= 1
    assert "resnet-18 | standard" in Path(f"out/{table}.md").read_text()


def test_an_unknown_table_is_named_in_one_line_and_leaves_nothing(capsys: Any) -> None:
    assert cli.main(["reproduce", "table5"]) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), "TABLE is 'table5'" in said) == (1, True)
    assert not Path("runs").exists()


def test_the_time_of_the_processor_is_counted_where_it_is_asked_for(capsys: Any, monkeypatch: Any) -> None:
    seconds = itertools.count(0, 1000)
    monkeypatch.setattr(study.time, "process_time", lambda: float(next(seconds)))
    status, said, _ = call(capsys, "--seeds", "0", "--processor-time", rows=ROWS[:1])
    assert status == 0
    results = read_record(Path("out/records/lipconvnet-5-soc-0.json"))["results"]
    assert results["minutes_of"] == "processor"
    assert results["cpu_seconds"] > 1000
    assert "Minutes are processor time" in said
    assert "--processor-time --rows" in results["command"]


def test_a_run_whose_budget_was_over_is_evaluated_on_all_images_for_its_record(capsys: Any, monkeypatch: Any) -> None:
    original = Trainer._evaluate
    monkeypatch.setattr(Trainer, "_evaluate", lambda self, what, images, **rest: original(self, what, 10, **rest))
    assert call(capsys, "--seeds", "0", rows=ROWS[:1])[0] == 0
    run = open_run("out/lipconvnet-5/soc/seed-0")
    assert run.record()["results"]["images"] == 10
    assert read_record(Path("out/records/lipconvnet-5-soc-0.json"))["results"]["images"] == 359


def test_the_largest_norm_is_that_of_the_dense_matrix_at_the_layers_own_size() -> None:
    first, second = SOC2d(2, 4, 3, norm_bound=1.0), SOC2d(4, 4, 3, 2, norm_bound=1.5)
    model = nn.Sequential(first, MaxMin(), second, nn.Flatten()).train()
    found = study.largest_jacobian(model, (2, 8, 8))
    assert model.training
    model.eval()
    # Stride two gives the second layer images of half the side.
    norms = [
        float(torch.linalg.matrix_norm(dense_jacobian(layer.weight.detach().double(), size), 2))
        for layer, size in ((first, (8, 8)), (second, (4, 4)))
    ]
    assert found["layers"] == 2
    assert abs(found["norm_estimate"] - max(norms)) < 1e-3 * max(norms)
    assert found["norm_estimate"] <= found["norm_upper_bound"] <= 1.5 * (1 + 1e-6)
    assert found["truncation_error_taylor_12_terms"] <= 1.5**12 / 479001600 * (1 + 1e-6)
