"""`skewconv serve`: a real server, a real client, and requests that must be refused."""

import base64
import http.client
import io
import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import skewconv
from skewconv.serve import MOST_PICTURES
from skewconv.train.data import load_dataset
from skewconv.train.data.images import to_input

CONNECTIONS = 16


@pytest.fixture(scope="module")
def server(digits_run: Path) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "skewconv",
        "serve",
        str(digits_run),
        "--port",
        "0",
        "--json",
        "--connections",
        str(CONNECTIONS),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def ask(address: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(address + path, body, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error) if error.headers.get_content_type() == "application/json" else error.read()


def png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels.squeeze(0)).save(content, "PNG")
    return content.getvalue()


def test_it_says_what_predict_says_of_one_picture_and_of_many(server: str, digits_run: Path) -> None:
    images = load_dataset("digits").test.images[:5]
    expected = skewconv.predict(skewconv.load(digits_run), to_input(images))
    status, one = ask(server, "/predict", png(images[0]))
    assert status == 200
    assert one["class"] == str(int(expected.classes[0]))
    status, many = ask(
        server,
        "/batch",
        json.dumps({"pictures": [base64.b64encode(png(image)).decode() for image in images]}).encode(),
    )
    assert status == 200
    # Batches of another size round otherwise.
    assert many[0]["radius"] == pytest.approx(one["radius"], abs=1e-9)
    torch.testing.assert_close(
        torch.tensor([row["radius"] for row in many]).double(), expected.radii, rtol=0, atol=1e-6
    )
    logits = torch.tensor([list(row["logits"].values()) for row in many]).double()
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-6)
    status, health = ask(server, "/health")
    assert (status, health["status"], health["input_shape"]) == (200, "ready", [1, 8, 8])


def test_requests_that_it_cannot_answer_get_a_reason(server: str) -> None:
    picture = png(np.zeros((1, 8, 8), np.uint8))
    for path, body, status, words in [
        ("/predict", b"no picture", 400, "picture 1"),
        ("/predict", png(np.zeros((1, 6000, 6000), np.uint8)), 413, "6000 x 6000"),
        ("/batch", b"[]", 400, '{"pictures"'),
        ("/batch", b'{"pictures": []}', 400, f"1 to {MOST_PICTURES}"),
        ("/batch", b'{"pictures": ["%"]}', 400, "base64"),
    ]:
        code, answer = ask(server, path, body)
        assert (code, words in answer["error"]) == (status, True), answer
    # A body that is announced too long is not read.
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=60)
    connection.request("POST", "/predict", headers={"Content-Length": "10000001"})
    answer = connection.getresponse()
    assert (answer.status, "more than 10 MB" in json.load(answer)["error"]) == (413, True)
    connection.close()
    code, answer = ask(server, "/predict", picture, {"Origin": "http://elsewhere.example"})
    assert code == 403
    assert ask(server, "/nothing")[0] == 404


def test_beyond_the_connections_allowed_it_refuses_and_lives_on(server: str) -> None:
    address, held = server.removeprefix("http://"), []
    for _ in range(CONNECTIONS):
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        held.append((answer.status, connection))
    # The last of them makes as many as are allowed; one that is kept open counts.
    assert {status for status, _ in held[:-1]} == {200}
    assert held[-1][0] == 503
    for _, connection in held:
        connection.close()


def test_a_load_is_answered_and_the_server_lives_on(server: str) -> None:
    image = load_dataset("digits").test.images[0]
    together = threading.Barrier(6)

    def client(number: int) -> set[int]:
        together.wait(30)
        return {ask(server, "/predict", png(image))[0] for _ in range(4)}

    with ThreadPoolExecutor(6) as pool:
        statuses = set().union(*pool.map(client, range(6)))
    assert statuses == {200}
