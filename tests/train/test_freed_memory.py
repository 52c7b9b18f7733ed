"""What the process frees is not cleared again by the system, page by page."""

import subprocess
import sys

import pytest

from skewconv.train.freed_memory import keep_freed_memory

# How often the system has to give pages while 64 MB are taken and freed again ten times, after a first time.
CODE = """
import resource
from skewconv.train.freed_memory import keep_freed_memory

if {keep} and not keep_freed_memory():
    raise SystemExit(3)
def take():
    bytearray(b"x") * 2**26
def given():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
take()
before = given()
for _ in range(10):
    take()
print(given() - before)
"""


def _given(keep: bool) -> int:
    command = [sys.executable, "-c", CODE.format(keep=keep)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("the allocator of this system cannot be told")
    return int(done.stdout)


def test_freed_memory_is_taken_again():
    assert 10 * _given(keep=True) < _given(keep=False)


def test_a_system_without_glibc_is_left_as_it_is(monkeypatch):
    def no_library(name):
        raise OSError("no such library")

    monkeypatch.setattr("ctypes.CDLL", no_library)
    assert keep_freed_memory() is False
