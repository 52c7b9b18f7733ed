"""The commands certify, audit and attack, on a small run."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from skewconv import cli
from skewconv.certify import attack as attack_module
from skewconv.commands.attack import Attack
from skewconv.errors import ArgumentError
from skewconv.records import read_record


@pytest.fixture
def run(digits_run, tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SKEWCONV_CACHE", str(digits_run.parent / "cache"))
    return Path(shutil.copytree(digits_run, tmp_path / "run"))


def call(word: str, *words: object) -> int:
    return cli._parse(word, [str(w) for w in words]).run()


def test_certify_writes_and_check_agrees(run, capsys):
    assert call("certify", run, "--images", 50, "--radii", 0.1, 0.2) == 0
    assert "certified accuracy at l2 radius 0.1" in capsys.readouterr().out
    results = read_record(run / "certificates.json")["results"]
    assert results["images"] == 50
    assert list(results["certified"]) == ["0.1", "0.2"]
    assert call("certify", run, "--check", run / "certificates.csv") == 0
    assert "every certificate holds" in capsys.readouterr().out


def test_fast_certifies_and_attacks_the_frozen_network(run, capsys):
    assert call("certify", run, "--fast", "--images", 20) == 0
    assert "frozen at 1e-3" in capsys.readouterr().out
    record = json.loads((run / "certificates.json").read_text())
    assert record["results"]["function"] == {"kind": "frozen", "tol": 1e-3}
    assert call("certify", run, "--check", run / "certificates.csv") == 0
    with pytest.raises(ArgumentError, match=r"function was .*frozen"):
        call("certify", run, "--images", 20)
    assert call("attack", run, "--fast", "--images", 5, "--steps", 2, "--restarts", 1, "--tightness-steps", 0) == 0
    assert json.loads((run / "attack-pgd.json").read_text())["results"]["function"]["kind"] == "frozen"


def test_check_in_ball_arithmetic_proves_or_names_the_line(run, capsys):
    assert call("certify", run, "--images", 30) == 0
    file = run / "certificates.csv"
    capsys.readouterr()
    assert call("certify", run, "--check", file, "--arithmetic", "ball", "--images", 8) == 0
    shown = capsys.readouterr().out
    assert "every certificate holds" in shown
    assert "body.1 (SkewExponential)" in shown
    lines = file.read_text().splitlines()
    place = next(i for i, line in enumerate(lines[1:], 1) if float(line.split(",")[4]) > 0)
    row, last = lines[place].split(",")[0], lines[-1].split(",")[0]
    cells = lines[place].split(",")
    cells[4] = repr(float(cells[4]) * 1.0001)
    lines[place] = ",".join(cells)
    file.write_text("\n".join(lines) + "\n")
    words = ["--check", file, "--arithmetic", "ball", "--only", row, last, "--json"]
    assert call("certify", run, *words) == 1
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["arithmetic"] == "ball"
    assert results["checked"] == 2
    figures, radius = results["problems"]
    assert figures == "the record's mean_radius is not that of the table"
    assert radius.startswith(f"image {row}: radius")


def test_flags_of_the_check_that_contradict_each_other_are_refused(run):
    assert call("certify", run, "--images", 5) == 0
    check = ["--check", run / "certificates.csv"]
    for words in (
        ["--arithmetic", "ball"],
        [*check, "--images", 1],
        [*check, "--arithmetic", "ball", "--images", 2, "--only", 0],
        [*check, "--arithmetic", "ball", "--images", 6],
        [*check, "--arithmetic", "ball", "--only", 1],
    ):
        with pytest.raises(ArgumentError):
            call("certify", run, *words)


def test_audit_shows_a_table_and_writes_a_record(run, capsys):
    assert call("audit", run, "--steps", 5) == 0
    assert "SOC2d" in capsys.readouterr().out
    assert read_record(run / "audit.json")["kind"] == "audit"
    assert call("audit", run, "--steps", 2, "--json") == 0
    assert json.loads(capsys.readouterr().out)["results"]["network"]


def test_attack_breaks_nothing(run, capsys):
    assert call("attack", run, "--images", 20, "--steps", 10, "--restarts", 1, "--tightness-steps", 30) == 0
    shown = capsys.readouterr().out
    assert "certificates broken" in shown
    assert "distance found / radius, median" in shown
    nearly, wholly = (read_record(run / f"attack-pgd{end}.json")["results"] for end in ("", "-1"))
    assert [nearly["attack"]["fraction"], wholly["attack"]["fraction"]] == [0.99, 1.0]
    # Ten steps and the last look at each certified image.
    assert nearly["steps"] == wholly["steps"] == 11 * round(20 * nearly["certified"]["0"])
    tight = read_record(run / "tightness.json")["results"]
    assert tight["below"] == []
    assert 1 < tight["least"] <= tight["median"] < 3
    with pytest.raises(
        ArgumentError, match=r"tightness.json holds the results of other settings.*judged was 20 and is"
    ):
        call("attack", run, "--kind", "fgsm", "--images", 4)
    words = ["--kind", "autoattack", "--images", 4, "--queries", 10, "--steps", 5, "--fraction", 0.99]
    assert call("attack", run, *words, "--tightness-steps", 0, "--json") == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["violations"] == []
    assert results["attack"]["kind"] == "autoattack"
    assert results["steps"] > 100


def test_a_long_attack_climbs_a_frozen_copy_and_the_rounding_search_never(run, capsys, monkeypatch):
    monkeypatch.setattr("skewconv.commands.attack._FROZEN_FROM", 1)
    words = ["--images", 4, "--steps", 20, "--restarts", 1, "--tightness-steps", 5]
    assert call("attack", run, *words) == 0
    assert "climbing a frozen copy" in " ".join(capsys.readouterr().out.split())
    # The copy leads to nearly the same points.
    frozen = read_record(run / "attack-pgd.json")["results"]
    monkeypatch.undo()
    assert call("attack", run, *words, "--overwrite") == 0
    assert "the model as it is" in " ".join(capsys.readouterr().out.split())
    assert frozen["mean_distance"] == pytest.approx(read_record(run / "attack-pgd.json")["results"]["mean_distance"])
    monkeypatch.setattr("skewconv.commands.attack._FROZEN_FROM", 1)
    words = ["--kind", "rounding", "--images", 2, "--neighbours", 2, "--arithmetic", "model", "--tightness-steps", 0]
    assert call("attack", run, *words) == 0
    assert "the model as it is" in " ".join(capsys.readouterr().out.split())


def test_an_interrupted_attack_resumes_with_the_same_command(run, capsys, monkeypatch):
    words = ["--images", 6, "--batch-size", 2, "--steps", 4, "--restarts", 1, "--tightness-steps", 5]
    assert call("attack", run, *words, "--out", run / "whole") == 0
    evaluated = attack_module._evaluated
    batches = []

    def interrupts(*given):
        batches.append(given)
        if len(batches) == 5:
            raise KeyboardInterrupt
        return evaluated(*given)

    monkeypatch.setattr(attack_module, "_evaluated", interrupts)
    with pytest.raises(KeyboardInterrupt):
        call("attack", run, *words)
    assert "the same command resumes" in capsys.readouterr().err
    assert sorted(path.name for path in run.glob("unfinished-*")) == [
        "unfinished-attack-pgd-1.json",
        "unfinished-attack-pgd.json",
    ]
    assert call("attack", run, *words) == 0
    assert len(batches) == 5 + 2  # the one that was interrupted, and the last
    assert not list(run.glob("unfinished-*"))
    for file in ("attack-pgd.json", "attack-pgd-1.json", "tightness.json"):
        kept, whole = (read_record(folder / file)["results"] for folder in (run, run / "whole"))
        assert kept == whole, file
    # Outcomes of other settings are not taken.
    batches.clear()
    with pytest.raises(KeyboardInterrupt):
        call("attack", run, *words, "--overwrite")
    assert call("attack", run, *words, "--seed", 1, "--overwrite") == 0
    assert len(batches) == 5 + 6


def test_the_rounding_search_runs_in_both_arithmetics_and_breaks_nothing(run, capsys):
    words = ["--kind", "rounding", "--images", 10, "--neighbours", 5, "--fraction", 1.0, "--tightness-steps", 0]
    assert call("attack", run, *words, "--json") == 0
    records = json.loads(capsys.readouterr().out)["records"]
    assert [record["results"]["attack"]["arithmetic"] for record in records] == ["float64", "model"]
    assert all(record["results"]["violations"] == [] for record in records)
    assert (run / "attack-rounding-float64.json").exists()


def test_fgsm_at_one_epsilon(run):
    assert call("attack", run, "--kind", "fgsm", "--norm", "linf", "--epsilon", 0.03, "--images", 20) == 0
    assert read_record(run / "attack-fgsm.json")["results"]["attack"]["epsilon"] == 0.03


def test_a_broken_certificate_is_a_failure_with_the_image_saved(run, capsys, monkeypatch):
    monkeypatch.setattr(Attack, "_radii", lambda self, model, images, labels, progress: torch.full((len(images),), 2.0))
    assert call("attack", run, "--images", 5, "--steps", 10, "--restarts", 1) == 1
    # By their numbers among all 359 test images.
    found = {int(path.stem.rpartition("-")[2]) for path in run.glob("violation-*.npy")}
    assert found
    assert found <= {359 * number // 5 for number in range(5)}
    assert set(read_record(run / "tightness.json")["results"]["below"]) <= {359 * number // 5 for number in range(5)}
    assert "violation-" in capsys.readouterr().out


def test_flags_that_make_no_sense_are_refused(run):
    with pytest.raises(ArgumentError, match="--images is 0"):
        call("certify", run, "--images", 0)
    with pytest.raises(ArgumentError, match="--fraction"):
        call("attack", run, "--fraction", 1.01)
    with pytest.raises(FileExistsError):
        call("certify", run, "--out", run / "log.csv")
