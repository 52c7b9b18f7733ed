"""Runs to report: a small one on the digits, and one on folders whose names are meant to do harm."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from skewconv.cli import main

HOSTILE = ("<script>alert(1)", "'\"><img src=x onerror=alert(1)>", "$_{a}$ & 100%")


@pytest.fixture(scope="session")
def audited(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the small run with all that the other commands write."""
    folder = Path(shutil.copytree(digits_run, tmp_path_factory.mktemp("audited") / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKEWCONV_CACHE", str(digits_run.parent / "cache"))
        assert main(["certify", str(folder), "--json"]) == 0
        assert main(["audit", str(folder), "--steps", "2", "--json"]) == 0
        words = ["--epsilon", "0.2", "--steps", "3", "--restarts", "1"]
        assert main(["attack", str(folder), *words, "--json"]) == 0
    return folder


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a folder whose classes are named by an attacker; its parent holds the cache."""
    root = tmp_path_factory.mktemp("hostile")
    draws = np.random.default_rng(0)
    for name in HOSTILE:
        (root / "images" / name).mkdir(parents=True)
        for number in range(10):
            pixels = draws.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "images" / name / f"{number}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKEWCONV_CACHE", str(root / "cache"))
        words = ["train", "--data", f"folder:{root / 'images'}", "--width", "4", "--batch-size", "8", "--epochs", "1"]
        assert main([*words, "--device", "cpu", "--quiet", "--out", str(root / "$run_<b>")]) == 0
    return root / "$run_<b>"


@pytest.fixture(autouse=True)
def _cache(digits_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEWCONV_CACHE", str(digits_run.parent / "cache"))
