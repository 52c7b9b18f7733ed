"""The command line: every command explains itself, prints one JSON document, and names what is wrong in one line."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skewconv import cli
from skewconv._version import __version__
from skewconv.train.environment import FILE
from tests.train.runs import TINY_FLAGS

pytestmark = pytest.mark.usefixtures("_beside_the_digits")


@pytest.fixture(scope="module")
def run(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, made by the command, which prints one JSON document."""
    folder, printed = tmp_path_factory.mktemp("runs") / "run", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("SKEWCONV_CACHE", str(digits_run.parent / "cache"))
        # What is not there yet begins.
        assert cli.main(["train", *TINY_FLAGS, "--resume", "--out", str(folder), "--json", "--quiet"]) == 0
    document = json.loads(printed.getvalue())
    assert (document["kind"], document["run"], document["results"]["steps"]) == ("train", str(folder), 22)
    assert {"versions", "git", "machine", "seed"} < set(document)
    return folder


def test_without_words_the_commands_are_listed_and_the_version_is_told(call):
    status, out, _ = call()
    assert status == 2
    assert call("--help")[0] == 0
    for word in cli.COMMANDS:
        assert f"\n  {word} " in out
    assert call("--version") == (0, f"skewconv {__version__}\n", "")
    # The help of training shows the recipe that the other flags choose.
    _, out, _ = call("train", "--preset", "lipconvnet-35/bcop/cifar100", "--help")
    assert all(default in " ".join(out.replace("│", " ").split()) for default in ("(default: 35)", "(default: bcop)"))


def test_training_ends_with_the_figures_the_place_and_the_next_command(run, call, tmp_path):
    status, out, err = call("train", *TINY_FLAGS)
    assert status == 0
    assert "clean accuracy" in out
    for radius in ("36/255", "72/255", "108/255", "1"):
        assert f"certified accuracy at l2 radius {radius}" in out
    assert "proven Lipschitz bound" in out
    folder = Path("runs") / "digits-lipconvnet-5-soc"
    assert f"skewconv report {folder}" in out
    assert f"skewconv explore {folder}" in out
    assert (tmp_path / folder / FILE).exists()
    assert "images/s" in err
    call("train", *TINY_FLAGS, "--quiet")
    assert (tmp_path / "runs" / "digits-lipconvnet-5-soc-2" / FILE).exists()


def test_evaluate_repeats_the_metrics_of_training_and_data_describes_its_images(run, call):
    stored = json.loads((run / "record.json").read_text())["results"]
    status, out, _ = call("evaluate", str(run), "--json")
    assert status == 0
    results = json.loads(out)["results"]
    # repeated, on the machine of the training
    assert results == {name: stored[name] for name in results}
    assert set(results["certified"]) == {"36/255", "72/255", "108/255", "1"}
    assert results["certified"]["36/255"] <= results["clean"]
    _, text, _ = call("evaluate", str(run / FILE))
    assert f"{stored['clean']:.2%}" in text
    assert f"{stored['certified']['36/255']:.2%}" in text
    _, out, _ = call("evaluate", str(run), "--images", "100", "--json")
    assert json.loads(out)["results"]["images"] == 100
    _, out, _ = call("data", "digits")
    assert "1,438" in out
    assert "1 x 8 x 8" in out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nonsense",), "no command is called 'nonsense': there are train, "),
        (("trian",), "no command is called 'trian': did you mean 'train'? there are train, "),
        (("train", "--data", "folder"), "cifar100 or folder:PATH; did you mean folder:folder?"),
        (("train", "--resume"), "--resume needs --out"),
        (("train", "--minutes", "1", "--epochs", "3"), "give one of them"),
        (("train", "--devices", "0"), "--devices is 0"),
        (("train", "--device", "mps"), "torch sees none here"),
        (("evaluate", "nowhere"), "nowhere does not exist"),
        (("evaluate", "a" * 300), "File name too long"),
        (("data", "mnist"), "--data is 'mnist': it must be digits"),
        (("train", "--out", "file/below"), "file/below: Not a directory"),
        (("train", "--precision", "16-mixed", "--device", "cpu", "--out", "new"), "bf16-mixed on the CPU"),
    ],
)
def test_mistakes_are_named_in_one_line_before_any_work(words, reason, call):
    Path("file").write_text("")
    Path("folder").mkdir()
    status, out, err = call(*words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("skewconv: ")
    assert reason in err
    assert sorted(os.listdir()) == ["file", "folder"]


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        (("train", "--deph", "10"), ("Unrecognized options: --deph", "Perhaps you meant", "--depth INT")),
        (("train", "--epochs", "many"), ("--epochs: 'many' is not an integer or none", "Number of passes")),
        (("train", "--conv", "x"), ("'x' for argument '--conv'", "'soc', 'bcop'")),
        (("attack", "run", "--epsilon", "36/0"), ("--epsilon: '36/0' is not a number or none",)),
        (("evaluate",), ("Missing from skewconv evaluate", "RUN", "Folder of a run")),
    ],
)
def test_flags_that_are_not_understood_are_shown_with_those_that_are(words, reasons, call, tmp_path):
    status, out, err = call(*words)
    text = " ".join(err.replace("│", " ").split())
    assert (status, out) == (2, "")
    for reason in (*reasons, f"skewconv {words[0]} --help"):
        assert reason in text
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_never_overwritten_nor_resumed_with_other_flags(run, call):
    before = (run / FILE).read_bytes()
    status, _, err = call("train", *TINY_FLAGS, "--out", str(run))
    assert (status, "already holds a run: continue it with --resume" in err) == (2, True)
    status, _, err = call("train", "--resume", "--out", str(run), "--width", "4", "--lr", "0.5")
    assert status == 2
    assert "--width was 2 and is now 4" in err
    assert "lr was" in err
    assert (run / FILE).read_bytes() == before


def test_a_preset_can_be_changed_field_by_field_and_minutes_replace_epochs():
    config = cli._parse("train", ("--minutes", "0.2")).config
    assert (config.minutes, config.epochs) == (0.2, None)
    config = cli._parse("train", ("--preset", "lipconvnet-5/soc/cifar10", *TINY_FLAGS)).config
    assert (config.model.series, config.model.width, config.optim.schedule) == ("taylor", 2, "steps")


def test_a_truncated_checkpoint_is_an_error_and_not_a_new_start(run, call):
    content = (run / FILE).read_bytes()[:1000]
    Path(FILE).write_bytes(content)
    status, _, err = call("train", "--resume", "--out", ".")
    assert (status, "is damaged, truncated" in err) == (2, True)
    assert Path(FILE).read_bytes() == content


def test_resume_needs_no_flags_but_the_folder(run, call):
    stored = json.loads((run / "record.json").read_text())["results"]
    status, out, _ = call("train", "--resume", "--out", str(run), "--json", "--quiet")
    results = json.loads(out)["results"]
    assert (status, results["steps"], results["certified"]) == (0, stored["steps"], stored["certified"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_the_output_is_told_in_one_line():
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "skewconv", "train", "--print-config"]
        found = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode != 0
    assert "skewconv: No space left on device" in found.stderr


def test_mistakes_are_found_before_anything_is_certified(run, call, monkeypatch):
    monkeypatch.setattr("skewconv.certify.certify_dataset", lambda *_, **__: pytest.fail("it was certified first"))
    for words, reason in (
        (("certify", str(run), "--radii", "-1"), "--radii"),
        (("attack", str(run), "--seed", str(2**64)), "--seed"),
        (("audit", str(run), "--seed", str(2**64)), "--seed"),
        (("attack", str(run), "--kind", "rounding", "--norm", "linf"), "norm 'l2'"),
        (("export", str(run), "--to", "vanilla", "--out", str(run / "checkpoint.py")), "would replace"),
    ):
        status, _, err = call(*words)
        assert (status, reason in err) == (2, True), err


def test_a_run_goes_on_although_the_one_that_it_began_with_is_gone(run, call, tmp_path):
    first = Path(shutil.copytree(run, tmp_path / "first"))
    assert call("train", *TINY_FLAGS, "--quiet", "--init", str(first), "--out", "second")[0] == 0
    shutil.rmtree(first)
    assert call("train", "--resume", "--out", "second", "--quiet")[0] == 0
