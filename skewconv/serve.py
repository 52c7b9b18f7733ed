"""A small server of predictions: a picture in; its class, margins and certified radius out, as JSON.

    POST /predict   the bytes of a picture            -> one prediction
    POST /batch     {"pictures": [base64, ...]}       -> a list of predictions
    GET  /health                                      -> the network, its classes and the size of its images

Requests are computed one after the other. Beyond the number of connections allowed the answer is 503.
"""

import base64
import binascii
import json
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from skewconv.certify import Certifier
from skewconv.certify.predict import predict
from skewconv.errors import ArgumentError
from skewconv.explore.api import MOST_BYTES, bounded, error_handlers, read_upload
from skewconv.extras import optional
from skewconv.train.data.images import to_input
from skewconv.train.run import Run

#: pictures of one request, and bytes of its JSON
MOST_PICTURES, MOST_BATCH_BYTES = 64, 40_000_000
_EXTRA = "serve"


class Predictor:
    """A network that is prepared once and answers for pictures.

    Args:
        run: whose network it is.
    """

    def __init__(self, run: Run) -> None:
        channels, height, width = run.input_shape
        self.name, self.classes, self.shape = run.name, run.data.classes, (channels, height, width)
        self.certifier = Certifier(run.model, self.shape)

    def health(self) -> dict[str, Any]:
        """What the server has, once it is ready."""
        return {
            "status": "ready",
            "model": self.name,
            "classes": list(self.classes),
            "input_shape": list(self.shape),
            "lipschitz_upper_bound": self.certifier.lipschitz,
        }

    def answer(self, pictures: Sequence[bytes]) -> list[dict[str, Any]]:
        """One prediction for each picture, resized and cropped as ``skewconv predict --resize`` does."""
        pixels = [read_upload(content, f"picture {n}", self.shape)[0] for n, content in enumerate(pictures, 1)]
        found = predict(self.certifier, to_input(np.stack(pixels)))
        rows = found.rows(self.classes, self.shape[0])
        for row, logits in zip(rows, found.logits.tolist(), strict=True):
            row["logits"] = dict(zip(self.classes, logits, strict=True))
        return rows


def pictures_of(body: bytes) -> list[bytes]:
    """The pictures of a request ``{"pictures": [base64, ...]}``, checked."""
    try:
        pictures = json.loads(body)["pictures"]
        if not isinstance(pictures, list) or not 1 <= len(pictures) <= MOST_PICTURES:
            raise ArgumentError(f"pictures must be a list of 1 to {MOST_PICTURES} entries: send the others next")
        return [base64.b64decode(picture, validate=True) for picture in pictures]
    except (KeyError, TypeError, ValueError, RecursionError, binascii.Error) as error:
        raise ArgumentError(f'the request must be {{"pictures": [base64, ...]}}, in JSON ({error!r})') from error


def build_app(predictor: Predictor) -> Any:
    """The application, for an ASGI server."""
    routing = optional("starlette.routing", "starlette", _EXTRA)
    response = optional("starlette.responses", "starlette", _EXTRA).JSONResponse
    anyio = optional("anyio", "anyio", _EXTRA)
    turn = anyio.CapacityLimiter(1)

    async def health(request: Any) -> Any:
        return response(predictor.health())

    def route(path: str, most: int, answer: Callable[[bytes], Any]) -> Any:
        async def respond(request: Any) -> Any:
            # A page of another site must not make a browser ask.
            if "origin" in request.headers:
                return response({"error": "requests from web pages are refused: ask from a program"}, 403)
            body = await bounded(request.stream(), request.headers.get("content-length"), most)
            return response(await anyio.to_thread.run_sync(partial(answer, body), limiter=turn))

        return routing.Route(path, respond, methods=["POST"])

    routes = [
        routing.Route("/health", health),
        route("/predict", MOST_BYTES, lambda body: predictor.answer([body])[0]),
        route("/batch", MOST_BATCH_BYTES, lambda body: predictor.answer(pictures_of(body))),
    ]
    application = optional("starlette.applications", "starlette", _EXTRA).Starlette
    return application(routes=routes, exception_handlers=error_handlers(response))


def serve(predictor: Predictor, listener: socket.socket, connections: int, ready: Callable[[], None]) -> None:
    """Serve until the process is interrupted or terminated; requests that were accepted are answered first.

    Args:
        predictor: what answers.
        listener: see :func:`skewconv.explore.listen`.
        connections: open at a time.
        ready: called before the first request is accepted.
    """
    uvicorn = optional("uvicorn", "uvicorn", _EXTRA)
    settings = {"lifespan": "off", "log_level": "warning", "access_log": False, "server_header": False}
    server = uvicorn.Server(uvicorn.Config(build_app(predictor), limit_concurrency=connections, **settings))
    ready()
    server.run(sockets=[listener])
