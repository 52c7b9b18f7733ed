"""A server of the command line in a process of its own, and the page of `skewconv explore` on a small run."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image


class Served:
    """A running server: its process, its address, with a token in its path where it has one, and its folder."""

    def __init__(self, process: "subprocess.Popen[str]", address: str, folder: Path) -> None:
        self.process, self.address, self.folder = process, address, folder
        self.port, self.path = int(urlsplit(address).port or 0), urlsplit(address).path

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """A request by hand, with any headers, to a path from the root or below the token: its status and answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path if path.startswith("/") else self.path + path, body, headers or {})
            answer = connection.getresponse()
            is_json = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(answer.read()) if is_json else answer.read()
        finally:
            connection.close()

    def end(self, number: int) -> str:
        """Send a signal; what was printed on stderr until a clean end."""
        self.process.send_signal(number)
        err = self.process.communicate(timeout=120)[1]
        assert self.process.returncode == 0, err
        assert "Traceback" not in err
        return err


@contextmanager
def served(run: Path, folder: Path, command: str, *words: str) -> Iterator[Served]:
    """`skewconv COMMAND RUN --port 0 WORDS`, killed at the end."""
    cache, root = str(run.parent / "cache"), str(Path(__file__).parents[2])
    environment = {**os.environ, "SKEWCONV_CACHE": cache, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH", "")]))
    line = [sys.executable, "-m", "skewconv", command, str(run), "--port", "0", "--json", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(line, cwd=folder, env=environment, **pipes)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, process.communicate()[1]
        yield Served(process, json.loads(said)["address"], folder)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="session")
def page(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(digits_run, tmp_path_factory.mktemp("explore"), "explore") as running:
        yield running


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
