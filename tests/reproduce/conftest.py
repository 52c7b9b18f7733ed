"""A cache with the digits, and the tiny flags with which a table takes a second a row through the normal command."""

from pathlib import Path

import pytest

# 5 steps an epoch.
TINY = ("--data", "digits", "--width", "2", "--epochs", "1")


@pytest.fixture(scope="session")
def cache(digits_run: Path) -> Path:
    return digits_run.parent / "cache"


@pytest.fixture(autouse=True)
def _here(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEWCONV_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
