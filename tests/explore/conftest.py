"""The page of `skewconv explore`, served by the command itself in a process of its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest


@dataclass
class Served:
    """A running page: its process, its address with the token, and its folder."""

    process: "subprocess.Popen[str]"
    address: str
    folder: Path

    @property
    def port(self) -> int:
        return int(urlsplit(self.address).port or 0)

    @property
    def path(self) -> str:
        return urlsplit(self.address).path

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """A request by hand, with any headers: its status, and the body of the answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def served(cache: Path, folder: Path, *words: str) -> Iterator[Served]:
    """`skewconv explore WORDS`, ended at the end."""
    environment = {**os.environ, "SKEWCONV_CACHE": str(cache), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    root = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "skewconv", "explore", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"open      (http://127\.0\.0\.1:\d+/[\w-]{20,}/)\n", line)
        assert found, line + (process.communicate()[1] if process.poll() is not None else "")
        yield Served(process, found[1], folder)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="session")
def page(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(digits_run.parent / "cache", tmp_path_factory.mktemp("explore"), str(digits_run)) as running:
        yield running
