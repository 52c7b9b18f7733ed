"""The server of the page, on loopback."""

import json
import math
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from skewconv.errors import ArgumentError, SkewconvError
from skewconv.explore.api import TooLargeError, bounded, choose, decoded, describe, encoded, look, thumbnails
from skewconv.explore.model import ExploredModel, certified_curve
from skewconv.explore.origin_check import App, OriginCheck
from skewconv.extras import optional
from skewconv.report.page import data_uri

HOST = "127.0.0.1"
_PAGE = Path(__file__).parent / "page"
_KINDS = {"explore.js": "text/javascript", "explore.css": "text/css"}
_MOST_QUESTION = 4_000_000


def build_app(models: Sequence[ExploredModel], token: str, port: int) -> App:
    """The application: a page and its requests, behind the check of origins."""
    routing = optional("starlette.routing", "starlette", "explore")
    application = optional("starlette.applications", "starlette", "explore").Starlette
    api = _Api(models)
    routes = [
        routing.Route("/", api.page),
        routing.Route("/{name:str}", api.file),
        routing.Route("/api/models", api.models),
        routing.Route("/api/images", api.images),
        routing.Route("/api/curve", api.curve),
        routing.Route("/api/layers", api.layers),
        routing.Route("/api/look", api.look, methods=["POST"]),
        routing.Route("/api/picture", api.picture, methods=["POST"]),
    ]
    return OriginCheck(application(routes=routes), token, port)


class _Api:
    """The requests of the page, one method each; computations run in threads."""

    def __init__(self, models: Sequence[ExploredModel]) -> None:
        self._models = models
        self._responses = optional("starlette.responses", "starlette", "explore")

    async def page(self, request: Any) -> Any:
        return self._responses.HTMLResponse((_PAGE / "explore.html").read_text(encoding="utf-8"))

    async def file(self, request: Any) -> Any:
        name = request.path_params["name"]
        if name not in _KINDS:
            return self._plain({"error": "there is no such page"}, 404)
        return self._responses.Response((_PAGE / name).read_bytes(), media_type=_KINDS[name])

    async def models(self, request: Any) -> Any:
        return self._plain(describe(self._models))

    async def images(self, request: Any) -> Any:
        return await self._answer(self._thumbnails, dict(request.query_params))

    async def curve(self, request: Any) -> Any:
        return await self._answer(certified_curve, self._models)

    async def layers(self, request: Any) -> Any:
        return await self._answer(lambda: [{"name": each.name, **each.layers} for each in self._models])

    async def look(self, request: Any) -> Any:
        return await self._answer(self._look, await self._body(request, _MOST_QUESTION))

    async def picture(self, request: Any) -> Any:
        return await self._answer(self._picture, await self._body(request))

    def _thumbnails(self, query: dict[str, str]) -> dict[str, Any]:
        start, label = _whole(query, "start", 0), _whole(query, "label", None)
        return thumbnails(self._models[0], start or 0, label)

    def _look(self, body: bytes | SkewconvError) -> dict[str, Any]:
        try:
            question = json.loads(_content(body))
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"the request is not JSON: {error}") from error
        return look(self._models, *choose(self._models, question))

    def _picture(self, body: bytes | SkewconvError) -> dict[str, Any]:
        pixels, note = decoded(_content(body), self._models[0].shape)
        return {"pixels": encoded(pixels), "picture": data_uri(pixels), "note": note}

    async def _body(self, request: Any, *most: int) -> bytes | SkewconvError:
        try:
            return await bounded(request.stream(), request.headers.get("content-length"), *most)
        except SkewconvError as error:
            return error

    async def _answer(self, question: Callable[..., Any], *words: Any) -> Any:
        threads = optional("anyio.to_thread", "anyio", "explore")
        try:
            # The end of the server does not wait for an answer that is still being computed.
            found = await threads.run_sync(partial(question, *words), abandon_on_cancel=True)
            return self._plain(found)
        except TooLargeError as error:
            return self._plain({"error": str(error)}, 413, {"connection": "close"})
        except SkewconvError as error:
            return self._plain({"error": str(error)}, 400)

    def _plain(self, document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Any:
        text = json.dumps(_finite(document), allow_nan=False)
        return self._responses.Response(text, status, headers, media_type="application/json")


def _content(body: bytes | SkewconvError) -> bytes:
    if isinstance(body, SkewconvError):
        raise body
    return body


def _whole(query: dict[str, str], name: str, default: int | None) -> int | None:
    text = query.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 12):
        raise ArgumentError(f"{name} is {text[:40]!r}: it must be a number from 0")
    return int(text) if text else default


def _finite(value: Any) -> Any:
    """JSON has no infinity: what is not finite is left out."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def serve(models: Sequence[ExploredModel], port: int, ready: Callable[[str], None]) -> None:
    """Serve the page on loopback until the process is interrupted.

    Args:
        models: the models.
        port: to listen on; 0 takes any that is free.
        ready: called with the address, token included, once the port is bound.
    """
    uvicorn = optional("uvicorn", "uvicorn", "explore")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # On Windows this would share a port that another program has.
    if os.name == "posix":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        # From here on a browser may knock, and is answered as soon as the server runs.
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ArgumentError(f"port {port} cannot be used ({error}): choose another --port, or 0 for any") from error
    token, taken = secrets.token_urlsafe(24), listener.getsockname()[1]
    stop = threading.Event()
    for model in models:
        threading.Thread(target=model.survey, args=(stop,), daemon=True).start()
    settings = {"lifespan": "off", "log_level": "critical", "access_log": False, "timeout_graceful_shutdown": 0}
    server = uvicorn.Server(uvicorn.Config(build_app(models, token, taken), **settings, server_header=False))
    ready(f"http://{HOST}:{taken}/{token}/")
    try:
        server.run(sockets=[listener])
    finally:
        stop.set()
        listener.close()
