"""Every flag of every command has a help; answers without work need no torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from skewconv import cli
from tests.test_packaging import HIDE


def page(word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The help of a command in a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        cli.main([word, "--help"])
    return capsys.readouterr().out


def helps(page: str) -> dict[str, str]:
    """The text of each flag and argument. A text stands behind its flag, or below it where that is long."""
    found: dict[str, str] = {}
    for line in page.partition("\n\n")[2].replace("│", " ").splitlines():
        parts = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        if re.match(r"  (-{1,2}[a-z]|[A-Z]+\b|\[)", line):
            name = parts[0].split(" ")[0]
            found[name] = parts[1] if len(parts) > 1 else ""
        elif re.match(r"\s{6,}\S", line) and found:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return {name: re.sub(r"\.\s*\((default|required|unset).*$", ".", text) for name, text in found.items()}


@pytest.mark.parametrize("word", cli.COMMANDS)
def test_every_flag_is_explained_in_the_words_of_the_documents(
    word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page(word, capsys, monkeypatch)
    found = helps(text)
    assert "--json" in found
    for name, said in found.items():
        assert name.startswith("-h") or re.fullmatch(r"[A-Z0-9].*\.", said), f"{name}: {said!r}"
    for strange in ("None", "config.model", "RUN_PATH", "RUN-PATH", "proved"):
        assert strange not in text, strange


@pytest.mark.parametrize("word", cli.COMMANDS)
def test_the_overview_shows_the_first_line_of_each_command(word: str) -> None:
    assert cli._summary(word) == cli._command(word).__doc__.splitlines()[0]


def run_without(hidden: tuple[str, ...], words: tuple[str, ...], folder: Path) -> "subprocess.CompletedProcess[str]":
    """The command in a process in which some packages cannot be imported."""
    code = f"{HIDE.format(hidden=hidden)}from skewconv.cli import main\nsys.exit(main({list(words)!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ((), 2),
        (("--help",), 0),
        (("--version",), 0),
        (("nonsense",), 2),
        *(((word, "--help"), 0) for word in cli.COMMANDS),
        *(((word, "nowhere"), 2) for word in ("evaluate", "certify", "audit", "attack")),
        (("train", "--depth", "7"), 2),
        (("train", "--preset", "lipconvnet-5/soc/cifar10", "--data", "cifar100"), 2),
        (("attack", "nowhere", "--kind", "fgsm", "--steps", "3"), 2),
    ],
)
def test_what_needs_no_computing_is_answered_without_torch(words: tuple[str, ...], status: int, tmp_path: Path) -> None:
    answer = run_without(("torch", "numpy"), words, tmp_path)
    assert answer.returncode == status, answer.stderr
    assert "Traceback" not in answer.stderr
    assert "needed here" not in answer.stderr


@pytest.mark.parametrize("words", [(), ("--help",), ("--version",), ("help",)])
def test_without_the_extras_the_command_still_explains_itself(words: tuple[str, ...], tmp_path: Path) -> None:
    answer = run_without(("tyro", "rich", "torch", "lightning_fabric"), words, tmp_path)
    assert answer.returncode == (0 if words else 2)
    assert answer.stderr == ""
    assert "skewconv" in answer.stdout


@pytest.mark.parametrize("word", cli.COMMANDS)
def test_a_missing_extra_is_named_in_one_line(word: str, tmp_path: Path) -> None:
    answer = run_without(("tyro", "rich"), (word, "--help"), tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.startswith(
        "skewconv: tyro is needed here and is missing: in a clone of skewconv, pip install '.[train]'"
    )
    assert answer.stderr.count("\n") == 1
