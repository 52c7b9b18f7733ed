"""Archives made to harm: each is refused with a reason, does nothing, and leaves nothing."""

import gzip
import io
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skewconv.train.data import ArchiveError
from skewconv.train.data.cifar import Cifar
from skewconv.train.data.load import load_cifar
from skewconv.train.data.unpickle import load_batch
from tests.train.archives import MINI10, MINI100, batches, member, python2_pickle, write_archive, write_packed


@pytest.fixture
def assert_refused(root: Path, tmp_path: Path, no_trace: Callable[[], None]) -> Callable[[Cifar, str], None]:
    """Load tmp_path/mini.tar.gz, expect a refusal with the reason given, and no trace of the attempt."""

    def check(spec: Cifar, reason: str) -> None:
        before = sorted(tmp_path.iterdir())
        with pytest.raises(ArchiveError, match=reason):
            load_cifar(spec, root, tmp_path / "mini.tar.gz", download=False)
        no_trace()
        assert sorted(tmp_path.iterdir()) == before

    return check


MEMBERS = {
    "traversal": (member("../../evil", b"x"), "would leave its folder"),
    "inner traversal": (member("cifar-10-batches-py/../../evil", b"x"), "would leave its folder"),
    "absolute": (member("/evil", b"x"), "would leave its folder"),
    "windows": (member("..\\evil", b"x"), "would leave its folder"),
    "drive": (member("C:evil", b"x"), "would leave its folder"),
    "symlink": (member("cifar-10-batches-py/x", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is a link"),
    "wanted symlink": (
        member("cifar-10-batches-py/test_batch", type=tarfile.SYMTYPE, linkname="data_batch_1"),
        "is a link",
    ),
    "hard link": (member("cifar-10-batches-py/x", type=tarfile.LNKTYPE, linkname="../../x"), "is a link"),
    "device": (member("cifar-10-batches-py/x", type=tarfile.CHRTYPE), "only plain files"),
    "block device": (member("cifar-10-batches-py/x", type=tarfile.BLKTYPE), "only plain files"),
    "pipe": (member("cifar-10-batches-py/x", type=tarfile.FIFOTYPE), "only plain files"),
    "twice": (member("cifar-10-batches-py/test_batch", b"x"), "twice|damaged"),
    "bomb": (member("cifar-10-batches-py/x", bytes(40 << 20)), "unpacks to more than"),
    "large member": (member("cifar-10-batches-py/test_batch", bytes(1 << 20)), "holds 1048576 bytes"),
    "header bomb": (member("x", pax_headers={"comment": "x" * (40 << 20)}), "unpacks to more than"),
    "sparse header": (
        member(
            "x",
            bytes(512),
            pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9" * 12},
        ),
        "only plain files|damaged",
    ),
}


@pytest.mark.parametrize("case", MEMBERS)
def test_a_hostile_member_is_refused(case: str, tmp_path: Path, assert_refused: Callable[[Cifar, str], None]) -> None:
    extra, reason = MEMBERS[case]
    assert_refused(write_archive(tmp_path / "mini.tar.gz", MINI10, batches(MINI10), (extra,)), reason)


def test_too_many_members_are_refused(tmp_path: Path, assert_refused: Callable[[Cifar, str], None]) -> None:
    extra = tuple(member(f"x{number}") for number in range(10_001))
    assert_refused(write_archive(tmp_path / "mini.tar.gz", MINI10, batches(MINI10), extra), "more than 10000 members")


def test_a_missing_member_is_refused(tmp_path: Path, assert_refused: Callable[[Cifar, str], None]) -> None:
    files = batches(MINI10)
    del files["data_batch_3"]
    assert_refused(write_archive(tmp_path / "mini.tar.gz", MINI10, files), "data_batch_3 missing")


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.3, 0.9, 0.9999])
def test_a_truncated_archive_is_refused(
    keep: float, tmp_path: Path, assert_refused: Callable[[Cifar, str], None]
) -> None:
    path = tmp_path / "mini.tar.gz"
    write_archive(path, MINI10, batches(MINI10))
    whole = path.read_bytes()
    assert_refused(write_packed(path, MINI10, whole[: int(keep * len(whole))]), "damaged|missing")


def test_a_flipped_bit_and_a_stranger_are_refused(tmp_path: Path, assert_refused: Callable[[Cifar, str], None]) -> None:
    path = tmp_path / "mini.tar.gz"
    write_archive(path, MINI10, batches(MINI10))
    packed = bytearray(path.read_bytes())
    packed[len(packed) // 2] ^= 4
    assert_refused(write_packed(path, MINI10, bytes(packed)), "damaged")
    assert_refused(write_packed(path, MINI10, b"not an archive"), "damaged")
    assert_refused(write_packed(path, MINI10, gzip.compress(b"not a tar file" * 1000)), "damaged|missing")


class _Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.recipe = function, arguments

    def __reduce__(self) -> Any:
        return self.recipe


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("file", ["data_batch_2", "batches.meta"])
def test_a_pickle_that_calls_code_calls_nothing(
    protocol: int, file: str, tmp_path: Path, assert_refused: Callable[[Cifar, str], None]
) -> None:
    marker = tmp_path / "current" / "marker"
    hostile = pickle.dumps({"data": _Call(os.mkdir, str(marker))}, protocol)
    pickle.loads(hostile)
    assert marker.is_dir(), "the pickle is harmless: the test shows nothing"
    marker.rmdir()
    assert_refused(
        write_archive(tmp_path / "mini.tar.gz", MINI10, batches(MINI10) | {file: hostile}), "asks for .*mkdir"
    )
    assert not marker.exists()


OPCODES = {
    "global": b"cos\nsystem\n(U\x04truetR.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93U\x04true\x85R.",
    "instance": b"(U\x04trueios\nsystem\n.",
    "object": b"(cos\nsystem\nU\x04trueo.",
    "extension": b"\x80\x02\x82\x01)R.",
    "persistent": b"Psome id\n.",
    "eval": b"cbuiltins\neval\n(U\x011tR.",
    "getattr": b"c__builtin__\ngetattr\n(U\x011U\x01xtR.",
    "numpy's loader": b"cnumpy\nload\n(U\x04fileLtR.",
    "numpy's runner": b"cnumpy.testing._private.utils\nrunstring\n(U\x011}tR.",
    "dotted": b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.tofile\x93.",
    "array called": b"cnumpy\nndarray\n((J\xff\xff\xff\x7ftU\x02u1tR.",
    "other kind rebuilt": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(K\x00tU\x01btR.",
    "memo bomb": b"\x80\x02}r\xff\xff\xff\x7f",
    "length bomb": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "bytearray bomb": b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\x00\x00.",
    "attributes of the stand-in": b"cnumpy\ndtype\n(N}U\x04codeU\x02u1stb.",
    "stop": b".",
    "empty": b"",
    "text": b"hello",
    "a list": b"].",
    "a key that is a list": b"}(]K\x01u.",
    "a key that is a number": b"}(K\x01K\x01u.",
}


@pytest.mark.parametrize("case", OPCODES)
def test_a_hostile_opcode_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(os, "system", called.append)
    with pytest.raises(ArchiveError, match="the batch"):
        load_batch(OPCODES[case], "the batch")
    assert called == []


def test_one_hostile_file_does_not_reach_the_next() -> None:
    with pytest.raises(ArchiveError):
        load_batch(b"cnumpy\ndtype\n(NU\x0c__setstate__K\x01}stb.", "the batch")
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    np.testing.assert_array_equal(load_batch(python2_pickle({"data": array}), "x")["data"], array)


@pytest.mark.parametrize("value", [io.BytesIO, print, np.zeros(3)], ids=["class", "function", "array"])
def test_a_pickle_of_a_modern_object_is_refused(value: object) -> None:
    with pytest.raises(ArchiveError, match="asks for"):
        load_batch(pickle.dumps({"data": value}, 5), "the batch")


def _spoil(spec: Cifar, key: str, value: Any) -> dict[str, Any]:
    files = batches(spec)
    files[spec.test_file][key] = value
    return files


PIXELS = np.zeros((6, 3072), np.uint8)
CONTENT = {
    "fewer rows": ("data", PIXELS[:5], r"shape \(5, 3072\), \(6, 3072\) is expected"),
    "more columns": ("data", np.zeros((6, 3073), np.uint8), "shape"),
    "transposed": ("data", np.zeros((3072, 6), np.uint8), "shape"),
    "images": ("data", np.zeros((6, 3, 1024), np.uint8), "not an array of rows and columns"),
    "floats": ("data", np.zeros((6, 384), np.float64), "another kind than uint8"),
    "words": ("data", np.zeros((6, 1536), np.uint16), "another kind than uint8"),
    "no array": ("data", "pixels", "no array 'data'"),
    "a list": ("data", [0] * 18432, "no array 'data'"),
    "label too large": ("labels", [0, 1, 2, 3, 4, 10], "label 10 is out of range: 0 to 9"),
    "label negative": ("labels", [0, 1, 2, 3, 4, -1], "label -1 is out of range"),
    "label huge": ("labels", [0, 1, 2, 3, 4, 2**80], "out of range"),
    "label true": ("labels", [0, 1, 2, 3, 4, True], "no list of integers"),
    "label text": ("labels", [0, 1, 2, 3, 4, "5"], "no list of integers"),
    "too few labels": ("labels", [0, 1, 2, 3, 4], "5 labels for 6 images"),
    "no labels": ("labels", None, "no list of integers"),
}


@pytest.mark.parametrize("case", CONTENT)
def test_wrong_shapes_kinds_and_labels_are_refused(
    case: str, tmp_path: Path, assert_refused: Callable[[Cifar, str], None]
) -> None:
    key, value, reason = CONTENT[case]
    assert_refused(write_archive(tmp_path / "mini.tar.gz", MINI10, _spoil(MINI10, key, value)), reason)


def test_a_label_of_cifar100_out_of_range_is_refused(
    tmp_path: Path, assert_refused: Callable[[Cifar, str], None]
) -> None:
    files = _spoil(MINI100, "fine_labels", [100] * 10)
    assert_refused(write_archive(tmp_path / "mini.tar.gz", MINI100, files), "label 100 is out of range: 0 to 99")


def test_an_array_shorter_than_its_shape_is_refused(
    tmp_path: Path, assert_refused: Callable[[Cifar, str], None]
) -> None:
    whole = python2_pickle(batches(MINI10)["test_batch"])
    lying = whole.replace(python2_pickle((6, 3072))[2:-1], python2_pickle((6, 307200))[2:-1])
    assert lying != whole
    files = batches(MINI10) | {"test_batch": lying}
    assert_refused(write_archive(tmp_path / "mini.tar.gz", MINI10, files), "do not fill the shape")


@pytest.mark.parametrize(
    "names", [None, ["a"] * 9, ["a"] * 10, [1] * 10, ["x" * 65, *"abcdefghi"], ["\x1b[2J", *"abcdefghi"]]
)
def test_class_names_that_are_none_are_refused(
    names: Any, tmp_path: Path, assert_refused: Callable[[Cifar, str], None]
) -> None:
    files = batches(MINI10) | {"batches.meta": {"label_names": names}}
    assert_refused(write_archive(tmp_path / "mini.tar.gz", MINI10, files), "label_names")
