"""Records: strict JSON, provenance without private facts, files written whole or not at all."""

import errno
import getpass
import json
import math
import os
import platform
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch

from skewconv import records
from skewconv.errors import ArgumentError
from skewconv.records import RecordError, WriteError, atomic_write, make_record, read_record, write_record


@dataclass(frozen=True)
class Inner:
    width: int = 32


@dataclass(frozen=True)
class Config:
    inner: Inner = Inner()
    radii: tuple[float, ...] = (0.1, 36 / 255)


def sample(**results: Any) -> dict[str, Any]:
    return make_record("test", config=Config(), seed=3, results=results)


def test_a_record_reads_back_as_it_was_written(tmp_path):
    record = sample(accuracy=0.1 + 0.2, names=["a", "ä"], nothing=None, yes=True, nested={"big": 2**70})
    write_record(tmp_path / "record.json", record)
    assert read_record(tmp_path / "record.json") == record
    assert record["config"] == {"inner": {"width": 32}, "radii": [0.1, 36 / 255]}
    assert os.listdir(tmp_path) == ["record.json"]


def test_arrays_and_tensors_become_lists_and_nan_survives_in_strict_json(tmp_path):
    path = tmp_path / "record.json"
    arrays = {"array": np.arange(2), "scalar": np.float32(0.5), "tensor": torch.ones(1, 2)}
    write_record(path, sample(loss=math.nan, low=[-math.inf], nans=np.full(2, np.nan), **arrays))
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    expected = {"loss": math.nan, "low": [-math.inf], "nans": [math.nan] * 2, "array": [0, 1], "scalar": 0.5}
    assert str(read_record(path)["results"]) == str({**expected, "tensor": [[1.0, 1.0]]})


def test_a_record_says_where_it_comes_from_without_host_user_or_path():
    record = sample()
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["python"] == platform.python_version()
    assert record["machine"]["threads"] == torch.get_num_threads()
    assert record["machine"]["memory_bytes"] > 2**28
    text = json.dumps(record)
    for private in (socket.gethostname(), getpass.getuser(), str(Path.home()), str(Path.cwd()), sys.prefix):
        assert not re.search(rf"\b{re.escape(private)}\b", text), private
    assert "/" not in json.dumps({key: record[key] for key in ("versions", "git", "seed", "time")})


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_git_state_is_that_of_the_package(tmp_path, monkeypatch):
    package = tmp_path / "checkout" / "skewconv"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(records, "__file__", str(package / "records.py"))
    assert sample()["git"] is None
    git(tmp_path / "checkout", "init", "--quiet")
    assert sample()["git"] is None, "another project's checkout around an installed package"
    git(package, "add", ".")
    git(package, "commit", "--quiet", "-m", "x")
    commit = git(package, "rev-parse", "HEAD")
    assert sample()["git"] == {"commit": commit, "dirty": False}
    (package / "__init__.py").write_text("x = 1\n")
    assert sample()["git"] == {"commit": commit, "dirty": True}
    monkeypatch.setenv("PATH", "")
    assert sample()["git"] is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({1: 2}, r"results\.x has the key 1: keys must be strings"),
        (Path("somewhere"), r"results\.x is a PosixPath"),
        ([object()], r"results\.x\[0\] is a object"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name(value, reason):
    with pytest.raises(ArgumentError, match=reason):
        sample(x=value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not a JSON document"),
        ("[]", "a record is a JSON object"),
        ('{"schema": 2}', "schema 2, this version reads 1"),
        ('{"schema": 1}', r"\['config', .*'versions'\] are missing or unknown"),
        ('{"x": {"$float": "1"}}', "must stand alone"),
        ("[" * 100_000, "not a JSON document"),
    ],
)
def test_a_file_that_is_no_record_is_refused(text, reason, tmp_path):
    (tmp_path / "record.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(RecordError, match=reason):
        read_record(tmp_path / "record.json")


def test_a_record_with_wrong_unknown_or_missing_fields_is_refused(tmp_path):
    path = tmp_path / "record.json"
    for change, reason in (
        ({"seed": "0"}, "'seed' is a str"),
        ({"seed": True}, "'seed' is a bool"),
        ({"extra": 1}, r"fields \['extra'\] are missing or unknown"),
    ):
        path.write_text(json.dumps(sample() | change))
        with pytest.raises(RecordError, match=reason):
            read_record(path)
        with pytest.raises(RecordError, match=reason):
            write_record(tmp_path / "other.json", sample() | change)
    with pytest.raises(RecordError, match="cannot be read"):
        read_record(tmp_path / "absent.json")
    assert os.listdir(tmp_path) == ["record.json"]


@pytest.mark.parametrize(("error", "existed"), [(ValueError, True), (KeyboardInterrupt, False)])
def test_a_writer_that_fails_midway_leaves_the_older_file(error, existed, tmp_path):
    path = tmp_path / "file"
    if existed:
        path.write_bytes(b"old")

    def write(file: BinaryIO) -> None:
        file.write(b"new" * 100_000)
        raise error

    with pytest.raises(error):
        atomic_write(path, write)
    assert os.listdir(tmp_path) == (["file"] if existed else [])
    assert not existed or path.read_bytes() == b"old"


@pytest.mark.parametrize("function", ["fsync", "replace", "open"])
def test_a_full_disk_leaves_the_older_file(function, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(WriteError, match=r"file was not written: No space left.*intact"):
            atomic_write(path, b"new")
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


@pytest.mark.skipif(os.name != "posix", reason="permissions and links as on POSIX")
def test_permissions_follow_the_umask_and_links_stay_links(tmp_path):
    old = os.umask(0o022)
    try:
        atomic_write(tmp_path / "file", lambda file: file.write(b"1"))
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    (tmp_path / "link").symlink_to("file")
    atomic_write(tmp_path / "link", b"2")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"2"


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_process_killed_while_writing_leaves_the_older_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    (tmp_path / ".file.note.tmp").write_bytes(b"someone else's")
    code = (
        "import os, signal, sys\n"
        "from skewconv.records import atomic_write\n"
        "def write(file):\n"
        "    file.write(b'new'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "atomic_write(sys.argv[1], write)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -9
    assert path.read_bytes() == b"old"
    assert len(os.listdir(tmp_path)) == 3
    records.remove_leftovers(path)
    assert sorted(os.listdir(tmp_path)) == [".file.note.tmp", "file"]
    records.remove_leftovers(tmp_path / "absent" / "file")
