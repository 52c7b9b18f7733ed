"""The page answers its own questions, refuses all others, and ends when it is told to."""

import json
import signal
import socket
import sys
from http.client import HTTPConnection
from itertools import product

import numpy as np
import pytest

from tests.explore.conftest import png, served


def look(page, **question):
    return page.ask("POST", "api/look", json.dumps(question))


def test_the_page_and_its_files_are_served_with_a_strict_policy(page):
    connection = HTTPConnection("127.0.0.1", page.port, timeout=120)
    connection.request("GET", page.path)
    answer = connection.getresponse()
    assert answer.status == 200
    assert b"<title>skewconv explore</title>" in answer.read()
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    connection.close()
    for name in ("explore.js", "explore.css"):
        assert page.ask("GET", name)[0] == 200
    for name in ("nothing.js", "..%2fserver.py", "../server.py", "%2e%2e/server.py", "api/nothing"):
        assert page.ask("GET", name)[0] in (403, 404)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        *(("Host", value) for value in ("evil.example", "evil.example:{port}", "127.0.0.1")),
        *(("Origin", value) for value in ("http://evil.example", "null", "http://127.0.0.1:1")),
        *(("Sec-Fetch-Site", value) for value in ("cross-site", "same-site")),
        ("wrong token", ""),
    ],
)
def test_another_host_origin_site_or_token_is_refused(page, header, value):
    start = "/wrong-token/" if header == "wrong token" else page.path
    for method, place in product(("GET", "POST"), ("", "api/models", "api/look")):
        sent = "{}" if method == "POST" else None
        status, body = page.ask(method, start + place, sent, {header.replace(" ", "-"): value.format(port=page.port)})
        assert (status, list(body)) == (403, ["error"])
    assert page.ask("GET", "api/models")[0] == 200


def test_a_look_from_its_own_origin_holds_prediction_radius_rivals_and_attack(page):
    headers = {"Origin": f"http://127.0.0.1:{page.port}", "Sec-Fetch-Site": "same-origin"}
    status, answer = page.ask("POST", "api/look", json.dumps({"index": 1, "length": 0.05}), headers)
    assert status == 200
    (model,) = answer["models"]
    assert model["radius"] > 0
    rivals = {name: radius for name, radius in model["radius_by_rival"].items() if name != model["prediction"]}
    assert model["radius"] == min(rivals.values()) == rivals[model["decided_by"]]
    assert len(rivals) == len(model["logits"]) - 1 == 9
    assert model["arithmetic"] == "float64"
    assert model["attack"]["distance"] <= 0.05
    for key in ("picture", "difference"):
        assert model["attack"][key].startswith("data:image/png;base64,")
    # Other systems have no second address on loopback.
    if sys.platform == "linux":
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", page.port), timeout=20)


def test_an_own_picture_is_resized_shown_and_attacked_and_nothing_is_stored(page, digits_run):
    before = sorted(digits_run.rglob("*"))
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    status, found = page.ask("POST", "api/picture", png(pixels))
    assert (status, found["note"]) == (200, "resized and cropped from 30 x 40 pixels")
    status, answer = look(page, pixels=found["pixels"], length=0.1)
    assert (status, answer["image"]["label"], answer["models"][0]["right"]) == (200, None, None)
    assert [*page.folder.iterdir()] == []
    assert sorted(digits_run.rglob("*")) == before
    status, answer = page.ask("POST", "api/picture", b"hello, I am text")
    assert (status, answer["error"][:36]) == (400, "the file cannot be read as an image:")


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"index": 0}, "length is 'None'"),
        ({"index": 0, "length": -1}, "length is '-1'"),
        ({"index": 10**9, "length": 0}, "there are 359 test images"),
        ({"pixels": "AAAA", "length": 0}, "pixels must be the base64"),
        ([], "must be a JSON object"),
        *((body, "not JSON") for body in (b"{", b"\xff", b"[" * 100_000)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_questions_that_make_no_sense_are_answered_with_what_is_wrong(page, question, said):
    sent = question if isinstance(question, bytes) else json.dumps(question)
    status, answer = page.ask("POST", "api/look", sent)
    assert status == 400
    assert said in answer["error"]


def test_thumbnails_come_in_portions_and_by_class(page):
    first = page.ask("GET", "api/images")[1]
    second = page.ask("GET", f"api/images?start={first['next']}")[1]
    assert second["images"][0]["index"] == first["next"]
    assert {image["label"] for image in page.ask("GET", "api/images?label=7")[1]["images"]} == {"7"}
    assert page.ask("GET", "api/images?start=x")[0] == 400


def test_ctrl_c_ends_it(digits_run, tmp_path):
    with served(digits_run, tmp_path, "explore") as running:
        # A connection that stays open does not keep it alive.
        connection = HTTPConnection("127.0.0.1", running.port, timeout=120)
        connection.request("GET", f"{running.path}api/models")
        connection.getresponse().read()
        assert running.end(signal.SIGINT).endswith("ended\n")
        connection.close()
