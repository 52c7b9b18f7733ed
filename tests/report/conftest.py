"""Runs to report: a small one on the digits with all that other commands write, and one whose names mean harm."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skewconv.cli import main
from skewconv.report import RunFacts, collect

HOSTILE = ("<script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>", "$_{a}$ & 100%")


@pytest.fixture(scope="session", autouse=True)
def _cache(digits_run: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKEWCONV_CACHE", str(digits_run.parent / "cache"))
        yield


@pytest.fixture(scope="session")
def audited(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the small run with certificates, an audit and an attack."""
    folder = shutil.copytree(digits_run, tmp_path_factory.mktemp("audited") / "run")
    attack = ["attack", "--epsilon", "0.2", "--steps", "3", "--restarts", "1"]
    for command, *words in (["certify"], ["audit", "--steps", "2"], attack):
        assert main([command, str(folder), *words, "--json"]) == 0
    return folder


@pytest.fixture(scope="session")
def facts(audited: Path) -> RunFacts:
    return collect([audited])[0]


@pytest.fixture(scope="session")
def hostile(facts: RunFacts) -> RunFacts:
    """The run with classes and a name chosen by an attacker, as a checkpoint can hold them."""
    data = dataclasses.replace(facts.run.data, classes=(*HOSTILE, *facts.run.data.classes[3:]))
    images = dataclasses.replace(facts.data, classes=data.classes)
    fields = {name: getattr(facts.run, name) for name in ("config", "model", "input_shape", "path")}
    run: Any = SimpleNamespace(data=data, **fields)
    return dataclasses.replace(facts, run=run, data=images, name="</title>$run_<b>")
