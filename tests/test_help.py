"""Every flag of every command has a help; answers without work need no torch."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from skewconv import cli
from skewconv._version import __version__
from tests.test_packaging import HIDE


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
def test_every_flag_is_explained_in_the_words_of_the_documents(word, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main([word, "--help"]) == 0
    text = capsys.readouterr().out
    found = helps(text)
    assert "--json" in found
    for name, said in found.items():
        assert name.startswith("-h") or re.fullmatch(r"[A-Z0-9].*\.", said), f"{name}: {said!r}"
    for strange in ("None", "config.model", "RUN_PATH", "RUN-PATH", "proved", "so many", "This is", "body "):
        assert strange not in text, strange


CALLS = """
import contextlib, io, json
from skewconv.cli import main
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    print(json.dumps([words, status, out.getvalue(), err.getvalue()]))
"""


def without(hidden: list[str], lines: Iterable[str], folder: Path) -> Iterator[tuple[list[str], int, str, str]]:
    """Words, status, output and errors of commands in a process in which some packages cannot be imported."""
    calls = json.dumps([line.split() for line in lines])
    command = [sys.executable, "-c", HIDE.format(hidden=hidden) + CALLS, calls]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return map(json.loads, done.stdout.splitlines())


def test_what_needs_no_computing_is_answered_without_torch(tmp_path):
    good = ["--help", "--version", *(f"{word} --help" for word in cli.COMMANDS)]
    bad = ["", "nonsense", *(f"{word} nowhere" for word in ("evaluate", "certify", "audit", "attack"))]
    bad += [
        "train --depth 7",
        "attack nowhere --kind fgsm --steps 3",
    ]
    for words, status, _, err in without(["torch", "numpy"], good + bad, tmp_path):
        assert status == (0 if " ".join(words) in good else 2), f"{words}: {err}"
        assert "needed here" not in err


def test_without_the_extras_the_command_names_what_is_missing(tmp_path):
    lines = ["--version", "", "--help", *(f"{word} --help" for word in cli.COMMANDS)]
    (_, *first), *others = without(["tyro", "rich", "torch", "lightning_fabric"], lines, tmp_path)
    assert first == [0, f"skewconv {__version__}\n", ""]
    missing = "skewconv: tyro is needed here and is missing: in a clone of skewconv, pip install '.[train]'\n"
    assert all(answer == [2, "", missing] for _, *answer in others)
