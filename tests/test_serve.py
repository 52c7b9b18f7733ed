"""`skewconv serve`: a real server, a real client, and requests that must be refused."""

import base64
import json
import math
import shutil
import signal
import socket
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import torch

import skewconv
from skewconv.cli import main
from skewconv.records import read_record
from skewconv.serve import MOST_PICTURES, application, route
from skewconv.train.data import load_dataset
from skewconv.train.data.images import to_input
from tests.explore.conftest import Served, png, served

CONNECTIONS = 16


@pytest.fixture(scope="module")
def server(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server of a run that was certified."""
    folder = tmp_path_factory.mktemp("serve")
    run = shutil.copytree(digits_run, folder / "run")
    assert main(["certify", str(run), "--json"]) == 0
    with served(run, folder, "serve", "--connections", str(CONNECTIONS)) as running:
        yield running
        assert running.end(signal.SIGINT).endswith("ended\n")


def test_it_says_what_predict_says_of_one_picture_and_of_many(server, digits_run):
    images = load_dataset("digits").test.images[:5]
    expected = skewconv.predict(skewconv.load(digits_run), to_input(images))
    status, one = server.ask("POST", "/predict", png(images[0, 0]))
    assert status == 200
    assert one["class"] == str(int(expected.classes[0]))
    batch = json.dumps({"pictures": [base64.b64encode(png(image[0])).decode() for image in images]})
    status, many = server.ask("POST", "/batch", batch)
    assert status == 200
    # Batches of another size round otherwise.
    assert many[0]["radius"] == pytest.approx(one["radius"], abs=1e-9)
    radii = torch.tensor([row["radius"] for row in many]).double()
    torch.testing.assert_close(radii, expected.radii, rtol=0, atol=1e-6)
    logits = torch.tensor([list(row["logits"].values()) for row in many]).double()
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-6)
    radii = read_record(server.folder / "run" / "certificates.json")["results"]["prediction_radii"]
    for row in many:
        assert row["share_of_smaller_test_radii"] == pytest.approx(
            sum(each < row["radius"] for each in radii) / 100, abs=0.011
        )
        assert row["place"].endswith("of those of the test images")
    status, health = server.ask("GET", "/health")
    assert (status, health["status"], health["input_shape"]) == (200, "ready", [1, 8, 8])


def bomb(side: int) -> bytes:
    """A black and white PNG of this many pixels a side, a few kilobytes large."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((side + 7) // 8 + 1) * 64, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/predict", b"no picture", 400, "the picture cannot be read as an image: replace"),
        ("/predict", png(np.arange(4096, dtype=np.uint8).reshape(64, 64))[:50], 400, "the picture cannot"),
        ("/predict", bomb(6000), 413, "6000 x 6000 pixels"),
        ("/predict", bomb(40_000), 400, "too many pixels"),
        ("/predict", bytes(12_000_000), 413, "more than 10 MB"),
        ("/batch", json.dumps({"pictures": ["aGk="] * 65}), 400, f"pictures must be a list of 1 to {MOST_PICTURES}"),
        ("/batch", b'{"pictures": []}', 400, f"1 to {MOST_PICTURES}"),
        ("/batch", b'{"pictures": ["%"]}', 400, "base64"),
        ("/batch", b"\xff", 400, "in JSON"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_requests_that_it_cannot_answer_get_a_reason(server, path, body, status, words):
    code, answer = server.ask("POST", path, body)
    assert (code, words in answer["error"]) == (status, True), answer
    assert "ArgumentError" not in answer["error"]


def test_other_pages_other_paths_and_other_methods_are_refused(server):
    code, answer = server.ask("POST", "/predict", b"", {"Origin": "http://elsewhere.example"})
    assert (code, "web pages" in answer["error"]) == (403, True)
    for path, status in (("/nothing", 404), ("/predict", 405)):
        code, answer = server.ask("GET", path)
        assert (code, answer["error"].startswith(f"GET {path}: ")) == (status, True)


@pytest.mark.parametrize(
    ("header", "chunk"),
    [("Content-Length: 200000000", b""), ("Transfer-Encoding: chunked", b"100000\r\n" + bytes(0x100000) + b"\r\n")],
    ids=["its length is said", "its length is not said"],
)
def test_an_upload_of_200_mb_is_not_taken(server, header, chunk):
    head = f"POST /predict HTTP/1.1\r\nHost: here\r\n{header}\r\n\r\n"
    sent, answer = 0, b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as raw:
        raw.sendall(head.encode())
        try:
            while chunk and sent < 200:
                raw.sendall(chunk)
                sent += 1
            answer = raw.recv(4096)
        except OSError:
            # It hung up, having said why, or not: what counts is that it did not take all of it.
            assert 0 < sent < 200
    assert b" 413 " in answer or 0 < sent < 200
    assert server.ask("GET", "/health")[0] == 200


def test_beyond_the_connections_allowed_it_refuses_and_lives_on(server):
    held = [HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in range(CONNECTIONS)]
    statuses = []
    for connection in held:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    # The last of them makes as many as are allowed; one that is kept open counts.
    assert statuses == [200] * (CONNECTIONS - 1) + [503]
    for connection in held:
        connection.close()


def test_a_load_is_answered_and_sigterm_ends_it_although_a_body_never_comes(digits_run, tmp_path):
    picture = png(load_dataset("digits").test.images[0, 0])
    with served(digits_run, tmp_path, "serve") as running:
        with ThreadPoolExecutor(6) as pool:
            statuses = pool.map(lambda _: running.ask("POST", "/predict", picture)[0], range(24))
            assert set(statuses) == {200}
        with socket.create_connection(("127.0.0.1", running.port), timeout=60) as slow:
            slow.sendall(b"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\nabc")
            assert running.ask("GET", "/health")[0] == 200
            assert running.end(signal.SIGTERM).endswith("ended\n")


def test_a_body_that_does_not_arrive_is_given_up_and_infinities_are_null(monkeypatch):
    monkeypatch.setattr("skewconv.serve._SECONDS_OF_A_BODY", 0.01)
    routes = [route("/", len, most=10), route("/infinite", lambda query: [math.inf, math.nan, 1.5])]
    app = application(routes, lambda request: "")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "query_string": b"", "headers": []}
    anyio.run(app, {**scope, "method": "POST", "path": "/"}, anyio.sleep_forever, send)
    assert sent[0]["status"] == 408
    sent.clear()
    anyio.run(app, {**scope, "method": "GET", "path": "/infinite"}, anyio.sleep_forever, send)
    assert json.loads(sent[1]["body"]) == [None, None, 1.5]
