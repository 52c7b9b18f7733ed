"""Every flag of every command has a help in plain words; answers without work need no torch."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from skewconv import cli

FRAGMENTS = ("Of", "In", "At", "For", "By", "To", "Whether", "Where", "How", "Which", "What")


def page(word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a person sees, in a terminal of 100 columns."""
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
def test_the_help_of_every_flag_begins_with_a_capital_and_ends_with_a_full_stop(
    word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = helps(page(word, capsys, monkeypatch))
    assert "--json" in found
    for name, text in found.items():
        if name.startswith("-h"):
            continue
        assert re.match(r"[A-Z0-9]", text), f"{name}: {text!r} does not begin like a sentence"
        assert text.endswith("."), f"{name}: {text!r} does not end like a sentence"
        assert text.split()[0] not in FRAGMENTS, f"{name}: {text!r} has no subject"


@pytest.mark.parametrize("word", cli.COMMANDS)
def test_one_vocabulary_in_the_help(
    word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page(word, capsys, monkeypatch)
    for strange in ("None", "config.model", "RUN_PATH", "RUN-PATH", "proved"):
        assert strange not in text, strange


@pytest.mark.parametrize("word", cli.COMMANDS)
def test_the_overview_shows_the_first_line_of_each_command(word: str) -> None:
    assert cli._summary(word) == cli._command(word).__doc__.splitlines()[0]


def run_without(blocked: tuple[str, ...], words: tuple[str, ...], folder: Path) -> "subprocess.CompletedProcess[str]":
    """The command in a process in which some packages cannot be imported; it says which ones it tried."""
    code = f"""
        import sys

        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {blocked!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Blocked())
        from skewconv.cli import main
        sys.exit(main({list(words)!r}))
    """
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=folder)


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
