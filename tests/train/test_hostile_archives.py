"""CIFAR files that are damaged, wrong or made to harm: each is refused, calls nothing, and leaves nothing."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skewconv.train.data import ArchiveError, DataError
from skewconv.train.data.cifar import Cifar, load_batch
from skewconv.train.data.load import load_cifar
from tests.train.archives import MINI10, MINI100, batches, pickled, write_archive, write_packed

Refused = Callable[[Cifar, Any, str], None]


@pytest.fixture
def assert_refused(root: Path, tmp_path: Path, no_trace: Callable[[], None]) -> Refused:
    """Load these files as an unpacked folder, expect a refusal with the reason given, and no trace of the attempt."""

    def check(spec: Cifar, files: Any, reason: str) -> None:
        folder = tmp_path / "unpacked"
        folder.mkdir()
        for name, data in pickled(files).items():
            (folder / name).write_bytes(data)
        with pytest.raises(DataError, match=reason):
            load_cifar(spec, root, folder, download=False)
        no_trace()

    return check


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_damaged_archive_is_refused(keep: float, root: Path, tmp_path: Path, no_trace: Callable[[], None]) -> None:
    path = tmp_path / "mini.tar.gz"
    write_archive(path, MINI10, batches(MINI10))
    spec = write_packed(path, MINI10, path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(ArchiveError, match="damaged"):
        load_cifar(spec, root, path, download=False)
    no_trace()


def test_an_archive_without_one_of_its_files_is_refused(root: Path, tmp_path: Path) -> None:
    files = batches(MINI10)
    del files["data_batch_3"]
    spec = write_archive(tmp_path / "mini.tar.gz", MINI10, files)
    with pytest.raises(ArchiveError, match="data_batch_3"):
        load_cifar(spec, root, tmp_path / "mini.tar.gz", download=False)


class _Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.recipe = function, arguments

    def __reduce__(self) -> Any:
        return self.recipe


@pytest.mark.parametrize(("protocol", "file"), [(0, "data_batch_2"), (2, "batches.meta"), (5, "data_batch_2")])
def test_a_pickle_that_calls_code_calls_nothing(
    protocol: int, file: str, tmp_path: Path, assert_refused: Refused
) -> None:
    marker = tmp_path / "current" / "marker"
    hostile = pickle.dumps({"data": _Call(os.mkdir, str(marker))}, protocol)
    pickle.loads(hostile)
    assert marker.is_dir(), "the pickle is harmless: the test shows nothing"
    marker.rmdir()
    assert_refused(MINI10, batches(MINI10) | {file: hostile}, "asks for .*mkdir")


OPCODES = {
    "global": b"cos\nsystem\n(U\x04truetR.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93U\x04true\x85R.",
    "extension": b"\x80\x02\x82\x01)R.",
    "persistent": b"Psome id\n.",
    "dotted": b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.tofile\x93.",
    "other kind rebuilt": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(K\x00tU\x01btR.",
    "empty": b"",
    "a list": b"].",
}


@pytest.mark.parametrize("case", OPCODES)
def test_a_hostile_opcode_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(os, "system", called.append)
    with pytest.raises(ArchiveError, match="the batch"):
        load_batch(OPCODES[case], "the batch")
    assert called == []


PIXELS = np.zeros((6, 3072), np.uint8)
CONTENT = {
    "fewer rows": ("data", PIXELS[:5], "no array of 6 x 3072 bytes"),
    "transposed": ("data", PIXELS.T, "no array of 6 x 3072 bytes"),
    "words": ("data", np.zeros((6, 3072), np.uint16), "no array of 6 x 3072 bytes"),
    "no array": ("data", "pixels", "no array of 6 x 3072 bytes"),
    "label too large": ("labels", [0, 1, 2, 3, 4, 10], "label 10 is out of range: 0 to 9"),
    "label negative": ("labels", [0, 1, 2, 3, 4, -1], "label -1 is out of range"),
    "label huge": ("labels", [0, 1, 2, 3, 4, 2**80], "out of range"),
    "label text": ("labels", [0, 1, 2, 3, 4, "5"], "no list of 6 integers"),
    "too few labels": ("labels", [0, 1, 2, 3, 4], "no list of 6 integers"),
    "no labels": ("labels", None, "no list of 6 integers"),
}


@pytest.mark.parametrize("case", CONTENT)
def test_wrong_shapes_kinds_and_labels_are_refused(case: str, assert_refused: Refused) -> None:
    key, value, reason = CONTENT[case]
    files = batches(MINI10)
    files["test_batch"][key] = value
    assert_refused(MINI10, files, reason)


def test_a_label_of_cifar100_out_of_range_is_refused(assert_refused: Refused) -> None:
    files = batches(MINI100)
    files["test"]["fine_labels"] = [100] * 10
    assert_refused(MINI100, files, "label 100 is out of range: 0 to 99")


@pytest.mark.parametrize("names", [None, ["a"] * 9, ["a"] * 10, [1] * 10, ["\x1b[2J", *"abcdefghi"]])
def test_class_names_that_are_none_are_refused(names: Any, assert_refused: Refused) -> None:
    assert_refused(MINI10, batches(MINI10) | {"batches.meta": {"label_names": names}}, "label_names")
