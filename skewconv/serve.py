"""The small HTTP server, and predictions over it: a picture in; its class, margins and certified radius out, as JSON.

    POST /predict   the bytes of a picture            -> one prediction
    POST /batch     {"pictures": [base64, ...]}       -> a list of predictions
    GET  /health                                      -> the network, its classes and the size of its images

Requests are computed one after the other. Beyond the number of connections allowed the answer is 503.
"""

import base64
import contextlib
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import anyio
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from skewconv.certify import Certifier
from skewconv.certify.predict import predict
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.train.data.images import look_at, read_picture, to_input
from skewconv.train.run import Run

HOST = "127.0.0.1"
#: of one picture
MOST_BYTES, MOST_PIXELS = 10_000_000, 25_000_000
#: of one batch
MOST_PICTURES, MOST_BATCH_BYTES = 64, 40_000_000
#: seconds for a body to arrive, and for accepted requests when the server ends: containers are killed after ten
_SECONDS_OF_A_BODY, _SECONDS_AT_THE_END = 30.0, 8
#: a page runs its own script alone, shows only pictures that stand in it, and cannot be framed
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class RefusedError(SkewconvError):
    """A request that is refused before it is read to its end, with the status of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def application(routes: Sequence[BaseRoute], refusal: Callable[[Request], str]) -> Starlette:
    """An application that answers 403 where `refusal` gives a reason, and errors of skewconv as JSON."""

    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        reason = refusal(request)
        answer = await (failed(request, RefusedError(403, reason)) if reason else go_on(request))
        answer.headers.update(_HEADERS)
        return answer

    async def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return JSONResponse({"error": f"{request.method} {request.url.path}: {error.detail}"}, error.status_code)
        # The rest of a refused request is not read.
        status, headers = (error.status, {"connection": "close"}) if isinstance(error, RefusedError) else (400, None)
        return JSONResponse({"error": str(error)}, status, headers)

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=guard)]
    return Starlette(
        routes=routes, middleware=middleware, exception_handlers={SkewconvError: failed, HTTPException: failed}
    )


def route(path: str, answer: Callable[[Any], Any], most: int = 0, **options: Any) -> Route:
    """A GET of the query's parameters, or a POST of a body of at most `most` bytes, answered in a thread as JSON."""

    async def respond(request: Request) -> Response:
        given: Any = await _body(request, most) if most else dict(request.query_params)
        found = json.dumps(await anyio.to_thread.run_sync(partial(answer, given), **options))
        # JSON has no infinity and no NaN: null stands for them.
        return JSONResponse(json.loads(found, parse_constant=lambda name: None))

    return Route(path, respond, methods=["POST" if most else "GET"])


async def _body(request: Request, most: int) -> bytes:
    """The body of a request, refused above `most` bytes.

    What exceeds them is read and dropped, up to four times as much: a client that is still sending misses the answer.
    """
    too_large = RefusedError(413, f"the file has more than {most / 1e6:g} MB: make it smaller")
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > 4 * most:
        raise too_large
    found, size = bytearray(), 0
    with anyio.move_on_after(_SECONDS_OF_A_BODY) as scope:
        async for chunk in request.stream():
            size += len(chunk)
            if size > 4 * most:
                raise too_large
            if size <= most:
                found += chunk
    if scope.cancelled_caught:
        raise RefusedError(408, f"the body did not arrive within {_SECONDS_OF_A_BODY:g} s: send it again")
    if size > most:
        raise too_large
    return bytes(found)


def read_upload(content: bytes, name: str, shape: tuple[int, int, int]) -> tuple[Any, tuple[int, int]]:
    """The pixels of an uploaded picture at the size of a network, and its own (height, width)."""
    (height, width), _ = look_at(content, name)
    if height * width > MOST_PIXELS:
        raise RefusedError(413, f"{name} has {width} x {height} pixels, more than {MOST_PIXELS:,}: make it smaller")
    return np.ascontiguousarray(read_picture(content, name, shape, resize=True)), (height, width)


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
        raise ArgumentError(f"port {port} of {host} cannot be used ({error}): choose another, or 0 for any") from error
    return listener


def serve(app: Starlette, listener: socket.socket, **settings: Any) -> None:
    """Serve until the process is interrupted or terminated: in the main thread, with further settings of uvicorn."""
    plain = {"lifespan": "off", "log_level": "critical", "access_log": False, "server_header": False}
    settings = {**plain, "timeout_graceful_shutdown": _SECONDS_AT_THE_END, **settings}
    # The server ends in order at either signal, and raises it again then.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(uvicorn.Config(app, **settings)).run(sockets=[listener])


def prediction_app(run: Run) -> Starlette:
    """The application of `skewconv serve`, whose network is prepared now."""
    channels, height, width = run.input_shape
    shape, classes = (channels, height, width), run.data.classes
    certifier = Certifier(run.model, shape)
    health = {
        "status": "ready",
        "model": run.name,
        "classes": list(classes),
        "input_shape": list(shape),
        "lipschitz_upper_bound": certifier.lipschitz,
    }

    def predictions(pictures: Sequence[bytes]) -> list[dict[str, Any]]:
        """One for each picture, resized and cropped as ``skewconv predict --resize`` does."""
        names = ["the picture"] if len(pictures) == 1 else [f"picture {n}" for n in range(1, 1 + len(pictures))]
        pixels = [read_upload(*each, shape)[0] for each in zip(pictures, names, strict=True)]
        found = predict(certifier, to_input(np.stack(pixels)))
        rows = found.rows(classes, channels)
        for row, logits in zip(rows, found.logits.tolist(), strict=True):
            row["logits"] = dict(zip(classes, logits, strict=True))
        return rows

    def refusal(request: Request) -> str:
        # A page of another site must not make a browser ask.
        return "requests from web pages are refused: ask from a program" if "origin" in request.headers else ""

    turn = {"limiter": anyio.CapacityLimiter(1)}
    routes = [
        route("/health", lambda _: health),
        route("/predict", lambda body: predictions([body])[0], MOST_BYTES, **turn),
        route("/batch", lambda body: predictions(pictures_of(body)), MOST_BATCH_BYTES, **turn),
    ]
    return application(routes, refusal)


def pictures_of(body: bytes) -> list[bytes]:
    """The pictures of a request ``{"pictures": [base64, ...]}``, checked."""
    try:
        pictures = [base64.b64decode(picture, validate=True) for picture in json.loads(body)["pictures"]]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f'the request must be {{"pictures": [base64, ...]}}, in JSON ({error!r})') from error
    if not 1 <= len(pictures) <= MOST_PICTURES:
        raise ArgumentError(f"pictures must be a list of 1 to {MOST_PICTURES} entries: send the others next")
    return pictures
