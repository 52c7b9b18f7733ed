"""The server of the page, on loopback, for a browser that knows the token, and its answers as plain JSON."""

import base64
import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from torch import Tensor

from skewconv.certify import certified_accuracy
from skewconv.certify.predict import predict
from skewconv.errors import ArgumentError
from skewconv.explore.model import ExploredModel
from skewconv.report import RunFacts
from skewconv.report.figures import figure_svg, largest_radius
from skewconv.report.page import data_uri, stretched
from skewconv.serve import HOST, MOST_BYTES, application, read_upload, route, serve
from skewconv.train.data.images import to_input

#: attacks may be this long, however large the radius is
LONGEST = 100.0
_THUMBNAILS = 60
_MOST_QUESTION = 4_000_000
# The settings of a drawing are global to matplotlib.
_DRAWING = threading.Lock()


def build_app(models: Sequence[ExploredModel], token: str, port: int) -> Starlette:
    """The application: the page, its style and its script, and the answers to its questions.

    A web page elsewhere can make a browser send requests to loopback, and a name that it controls can be made to point
    there. Such requests bear another Host or Origin, and do not know the token, the first part of every path.
    """
    hosts = [f"{name}:{port}" for name in (HOST, "localhost")]
    origins = [f"http://{host}" for host in hosts]

    def refusal(request: Request) -> str:
        given = [host.lower() for host in request.headers.getlist("host")]
        if len(given) != 1 or given[0] not in hosts:
            return "this page is served to 127.0.0.1 and localhost only"
        if any(origin.lower() not in origins for origin in request.headers.getlist("origin")):
            return "this page is served to itself only, not to another origin"
        if any(site not in ("same-origin", "none") for site in request.headers.getlist("sec-fetch-site")):
            return "this page is served to itself only, not to another site"
        if not hmac.compare_digest(request.scope["path"].split("/")[1].encode(), token.encode()):
            return "the address lacks its token: use the one that skewconv explore printed"
        return ""

    def ask(name: str, answer: Callable[[Any], Any], most: int = 0) -> Any:
        # The end of the server does not wait for an answer that is still being computed.
        return route(f"/api/{name}", answer, most, abandon_on_cancel=True)

    routes = [
        ask("models", lambda _: describe(models)),
        ask("images", lambda query: thumbnails(models[0], _whole(query, "start") or 0, _whole(query, "label"))),
        ask("curve", lambda _: certified_curve([model.ready() for model in models])),
        ask("look", lambda body: look(models, body), _MOST_QUESTION),
        ask("picture", lambda body: uploaded(body, models[0].shape), MOST_BYTES),
        Mount("/", StaticFiles(directory=Path(__file__).parent / "page", html=True)),
    ]
    return application([Mount(f"/{token}", routes=routes)], refusal)


def serve_page(
    models: Sequence[ExploredModel],
    listener: socket.socket,
    ready: Callable[[str], None],
    note: Callable[[str], None] = lambda text: None,
) -> None:
    """Serve the page until the process is interrupted; `ready` gets its address, `note` a line for each model."""
    token, port, stop = secrets.token_urlsafe(24), listener.getsockname()[1], threading.Event()
    app = build_app(models, token, port)
    ready(f"http://{HOST}:{port}/{token}/")
    for model in models:
        threading.Thread(target=model.prepare, args=(stop, note), daemon=True).start()
    try:
        serve(app, listener, timeout_graceful_shutdown=0)
    finally:
        stop.set()


def _whole(query: dict[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 12):
        raise ArgumentError(f"{name} is {text[:40]!r}: it must be a number from 0")
    return int(text) if text else None


def describe(models: Sequence[ExploredModel]) -> dict[str, Any]:
    """Classes and names, and what is awaited: '' once every model can answer."""
    return {
        "classes": list(models[0].classes),
        "progress": "; ".join(model.progress for model in models if model.progress),
        "models": [model.name for model in models],
    }


def thumbnails(model: ExploredModel, start: int, label: int | None) -> dict[str, Any]:
    """Test images from a start on, of one class or of all, and the next start, None at the end."""
    model.images_are_read.wait()
    if model.data is None:
        return {"images": [], "next": None, "missing": model.missing}
    test = model.data.test
    rows = np.arange(len(test)) if label is None else np.flatnonzero(test.labels == label)
    chosen = rows[np.searchsorted(rows, start) :][: _THUMBNAILS + 1]
    images = [
        {"index": int(row), "label": model.classes[int(test.labels[row])], "picture": data_uri(test.images[row])}
        for row in chosen[:_THUMBNAILS]
    ]
    return {"images": images, "next": int(chosen[_THUMBNAILS]) if len(chosen) > _THUMBNAILS else None}


def look(models: Sequence[ExploredModel], body: bytes) -> dict[str, Any]:
    """An image under attack, as each model sees it: ``{"index": 3, "length": 0.1}`` or ``{"pixels": base64, ...}``."""
    first = models[0].ready()
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"the request is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise ArgumentError("the request must be a JSON object with index or pixels, and length")
    length, index, label = request.get("length"), request.get("index"), None
    if isinstance(length, bool) or not isinstance(length, (int, float)) or not 0 <= length <= LONGEST:
        raise ArgumentError(f"length is {str(length)[:40]!r}: it must be a number from 0 to {LONGEST:g}")
    if request.get("pixels") is not None:
        index = None
        try:
            content = base64.b64decode(request["pixels"], validate=True)
            pixels = np.frombuffer(content, np.uint8).reshape(first.shape)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"pixels must be the base64 of {first.shape} bytes ({error})") from error
    else:
        count = 0 if first.data is None else len(first.data.test)
        if first.data is None or type(index) is not int or not 0 <= index < count:
            raise ArgumentError(f"index is {str(index)[:40]!r}: there are {count} test images, counted from 0")
        pixels, label = first.data.test.images[index], int(first.data.test.labels[index])
    name = None if label is None else first.classes[label]
    image = {"index": index, "label": name, "picture": data_uri(pixels)}
    seen = [_seen(model.ready(), to_input(pixels), label, float(length)) for model in models]
    return {"length": length, "image": image, "models": seen}


def _seen(model: ExploredModel, image: Tensor, label: int | None, length: float) -> dict[str, Any]:
    with model.lock:
        found = None if model.certifier is None else predict(model.certifier, image[None])
        logits = model.search.logits(image[None].double())[0] if found is None else found.logits[0]
        prediction = int(logits.argmax())
        moved, attacked, nearest = model.search(image, prediction, length)
    row: dict[str, Any] = {}
    rivals: dict[str, float] = {}
    if found is not None:
        row = found.rows(model.classes, image.shape[-3])[0]
        rivals = dict(zip(model.classes, found.rival_radii[0].tolist(), strict=True))
    radius = row.get("radius")
    return {
        "name": model.name,
        "refusal": model.refusal or None,
        "prediction": model.classes[prediction],
        "right": None if label is None else prediction == label,
        "margin": float(logits.topk(2).values.diff().neg()),
        "radius": radius,
        "meaning": row.get("meaning"),
        "place": row.get("place"),
        "arithmetic": row.get("arithmetic", "as the model runs"),
        "logits": logits.tolist(),
        "decided_by": row.get("decided_by"),
        "radius_by_rival": rivals,
        "attack": _attacked(model, moved, attacked, image, prediction),
        "nearest_attack": nearest,
        "gap": None if radius is None or nearest is None else nearest - radius,
        "certified_accuracy": _certified(model, length),
    }


def _attacked(model: ExploredModel, moved: Tensor, logits: Tensor, image: Tensor, prediction: int) -> dict[str, Any]:
    change = moved - image.double()
    peak = float(change.abs().max())
    now, others = int(logits.argmax()), logits[torch.arange(len(logits)) != prediction]
    return {
        "prediction": model.classes[now],
        "changed": now != prediction,
        "distance": float(torch.linalg.vector_norm(change)),
        "margin": float(logits[prediction] - others.max()),
        "logits": logits.tolist(),
        "picture": data_uri(np.rint(moved.numpy() * 255).astype(np.uint8)),
        "difference": data_uri(stretched(change.numpy())),
        "magnified": 0.5 / peak if peak > 0 else None,
        "largest_change": peak,
    }


def _certified(model: ExploredModel, length: float) -> dict[str, Any] | None:
    table = model.certificates
    if table is None:
        return None
    right = float((table.prediction == table.label).double().mean())
    # At length zero no image has moved: its accuracy is the clean one.
    share = right if length == 0 else certified_accuracy(table.radius, [length])[0]
    return {"share": share, "images": len(table), "origin": model.origin}


def certified_curve(models: Sequence[ExploredModel]) -> dict[str, Any]:
    """The figure as SVG, the radius at which its axis ends, and the models whose certificates are not ready."""
    # The figure reads names and certificates alone.
    shown = [SimpleNamespace(name=model.name, certificates=model.certificates, attacks=()) for model in models]
    runs = cast("list[RunFacts]", shown)
    awaited = [m.name for m in models if m.certificates is None and m.certifier is not None and m.data is not None]
    with _DRAWING:
        svg = figure_svg("certified-accuracy", runs)
    return {"svg": svg, "end": largest_radius(runs), "awaited": awaited}


def uploaded(content: bytes, shape: tuple[int, int, int]) -> dict[str, str]:
    """An uploaded picture at the size of the network: its pixels, for requests, an address to show it, and a note."""
    pixels, (height, width) = read_upload(content, "the file", shape)
    size = f"{width} x {height} pixels"
    note = size if (height, width) == shape[1:] else f"resized and cropped from {size}"
    return {"pixels": base64.b64encode(pixels.tobytes()).decode(), "picture": data_uri(pixels), "note": note}
