"""The server of the page: on loopback, for a browser on this machine that knows the token."""

import hmac
import json
import math
import os
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from skewconv.errors import ArgumentError
from skewconv.explore.api import MOST_BYTES, bounded, choose, describe, error_handlers, look, thumbnails, uploaded
from skewconv.explore.model import ExploredModel, certified_curve
from skewconv.extras import optional

HOST = "127.0.0.1"
_PAGE = Path(__file__).parent / "page"
_KINDS = {"explore.html": "text/html", "explore.js": "text/javascript", "explore.css": "text/css"}
_MOST_QUESTION = 4_000_000

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: the page runs its own script alone, shows only pictures that stand in it, and cannot be framed
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": _POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-store",
}


@dataclass(frozen=True)
class OriginCheck:
    """Refuses requests caused by other web pages or other names of this machine.

    A web page elsewhere can make a browser send requests to loopback, and a name that it controls can be made to point
    there. Such requests bear another Host or Origin, and do not know the token, the first part of every path.
    """

    app: App
    token: str
    port: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403 with a reason."""
        if scope["type"] != "http":
            return
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        if refusal := self._refusal(headers, scope["path"]):
            response = optional("starlette.responses", "starlette", "explore").PlainTextResponse
            # The rest of a refused request is not read.
            await response(f"{refusal}\n", 403, {"connection": "close"})(scope, receive, _with_headers(send))
            return
        inner = {**scope, "path": scope["path"][len(self.token) + 1 :] or "/", "raw_path": None}
        await self.app(inner, receive, _with_headers(send))

    def _refusal(self, headers: dict[bytes, list[bytes]], path: str) -> str:
        hosts = {f"{name}:{self.port}".encode() for name in ("127.0.0.1", "localhost")}
        given = headers.get(b"host", [])
        if len(given) != 1 or given[0].lower() not in hosts:
            return "this page is served to 127.0.0.1 and localhost only"
        origins = {b"http://" + host for host in hosts}
        if any(origin.lower() not in origins for origin in headers.get(b"origin", [])):
            return "this page is served to itself only, not to another origin"
        if any(site not in (b"same-origin", b"none") for site in headers.get(b"sec-fetch-site", [])):
            return "this page is served to itself only, not to another site"
        first = path.split("/")[1] if path.startswith("/") else ""
        if not hmac.compare_digest(first.encode(), self.token.encode()):
            return "the address lacks its token: use the one that skewconv explore printed"
        return ""


def _with_headers(send: Send) -> Send:
    async def sender(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *HEADERS.items()]}
        await send(message)

    return sender


def build_app(models: Sequence[ExploredModel], token: str, port: int) -> App:
    """The application: a page and its requests, behind the check of origins."""
    routing = optional("starlette.routing", "starlette", "explore")
    responses = optional("starlette.responses", "starlette", "explore")
    threads = optional("anyio.to_thread", "anyio", "explore")

    def as_json(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Any:
        text = json.dumps(_finite(document), allow_nan=False)
        return responses.Response(text, status, headers, media_type="application/json")

    async def file(request: Any) -> Any:
        name = request.path_params.get("name", "explore.html")
        if name not in _KINDS:
            return as_json({"error": "there is no such page"}, 404)
        return responses.Response((_PAGE / name).read_bytes(), media_type=_KINDS[name])

    def route(path: str, answer: Callable[[Any], Any], most: int = 0) -> Any:
        """A GET of the query's parameters, or a POST of a body of at most this many bytes."""

        async def respond(request: Any) -> Any:
            given: Any = dict(request.query_params)
            if most:
                given = await bounded(request.stream(), request.headers.get("content-length"), most)
            # The end of the server does not wait for an answer that is still being computed.
            return as_json(await threads.run_sync(partial(answer, given), abandon_on_cancel=True))

        return routing.Route(f"/api/{path}", respond, methods=["POST" if most else "GET"])

    def images(query: dict[str, str]) -> dict[str, Any]:
        return thumbnails(models[0], _whole(query, "start") or 0, _whole(query, "label"))

    routes = [
        routing.Route("/", file),
        routing.Route("/{name:str}", file),
        route("models", lambda _: describe(models)),
        route("images", images),
        route("curve", lambda _: certified_curve(models)),
        route("layers", lambda _: [{"name": model.name, **model.layers} for model in models]),
        route("look", lambda body: look(models, *choose(models, body)), _MOST_QUESTION),
        route("picture", lambda body: uploaded(body, models[0].shape), MOST_BYTES),
    ]
    application = optional("starlette.applications", "starlette", "explore").Starlette
    return OriginCheck(application(routes=routes, exception_handlers=error_handlers(as_json)), token, port)


def _whole(query: dict[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 12):
        raise ArgumentError(f"{name} is {text[:40]!r}: it must be a number from 0")
    return int(text) if text else None


def _finite(value: Any) -> Any:
    """The document with None for infinities and NaN, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def listen(port: int, host: str = HOST) -> socket.socket:
    """A socket, on loopback by default, that listens to the port; 0 takes any that is free."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # On Windows this would share a port that another program has.
    if os.name == "posix":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ArgumentError(f"port {port} cannot be used ({error}): choose another --port, or 0 for any") from error
    return listener


def serve(models: Sequence[ExploredModel], listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve the page until the process is interrupted, and close the socket.

    ``ready`` is called with the address, token included.
    """
    uvicorn = optional("uvicorn", "uvicorn", "explore")
    token, port, stop = secrets.token_urlsafe(24), listener.getsockname()[1], threading.Event()
    for model in models:
        threading.Thread(target=model.survey, args=(stop,), daemon=True).start()
    settings = {"lifespan": "off", "log_level": "critical", "access_log": False, "timeout_graceful_shutdown": 0}
    server = uvicorn.Server(uvicorn.Config(build_app(models, token, port), **settings, server_header=False))
    ready(f"http://{HOST}:{port}/{token}/")
    try:
        server.run(sockets=[listener])
    finally:
        stop.set()
        listener.close()
