"""Where the results of a command go."""

from pathlib import Path

import pytest

from skewconv.errors import ArgumentError
from skewconv.train.paths import FILE, results_folder


def test_the_folder_of_results_is_that_of_the_run_or_is_made(tmp_path: Path) -> None:
    assert results_folder(tmp_path / FILE, None) == tmp_path
    assert results_folder(tmp_path / FILE, tmp_path / "a" / "b").is_dir()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ArgumentError, match=r"^--out is .*file.*which cannot be made a folder"):
            results_folder(tmp_path / FILE, out)
