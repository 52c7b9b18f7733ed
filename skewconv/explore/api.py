"""The answers of the server as plain JSON: models, test images, an image under attack, an uploaded image."""

import base64
import binascii
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skewconv.certify import certified_accuracy
from skewconv.certify.predict import ARITHMETIC, Predictions, in_words
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.explore.model import ExploredModel, Found
from skewconv.report.page import data_uri, stretched
from skewconv.train.data.images import look_at, read_picture, to_input

#: attacks may be this long, however large the radius is
LONGEST = 100.0
_THUMBNAILS = 60
MOST_BYTES, MOST_PIXELS = 10_000_000, 25_000_000


@dataclass(frozen=True)
class Chosen:
    """The image of a request: (C, H, W) uint8, and its number and label if it is a test image."""

    pixels: Any
    index: int | None = None
    label: int | None = None


def describe(models: Sequence[ExploredModel]) -> dict[str, Any]:
    """The models: names, classes, shape, bound or refusal."""
    data = models[0].data
    return {
        "classes": list(models[0].classes),
        "shape": list(models[0].shape),
        "test_images": 0 if data is None else len(data.test),
        "models": [
            {
                "name": model.name,
                "refusal": model.refusal or None,
                "lipschitz_upper_bound": None if model.certifier is None else model.certifier.lipschitz,
                "arithmetic": ARITHMETIC,
            }
            for model in models
        ],
    }


def thumbnails(model: ExploredModel, start: int, label: int | None) -> dict[str, Any]:
    """Test images from a start on, of one class or of all, and the next start, None at the end."""
    if model.data is None:
        return {"images": [], "next": None}
    test = model.data.test
    rows = np.arange(len(test)) if label is None else np.flatnonzero(test.labels == label)
    chosen = rows[np.searchsorted(rows, start) :][: _THUMBNAILS + 1]
    images = [
        {"index": int(row), "label": model.classes[int(test.labels[row])], "picture": data_uri(test.images[row])}
        for row in chosen[:_THUMBNAILS]
    ]
    return {"images": images, "next": int(chosen[_THUMBNAILS]) if len(chosen) > _THUMBNAILS else None}


def choose(models: Sequence[ExploredModel], body: bytes) -> tuple[Chosen, float]:
    """The image and the length of a request ``{"index": 3, "length": 0.1}`` or ``{"pixels": base64, ...}``, checked."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"the request is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise ArgumentError("the request must be a JSON object with index or pixels, and length")
    length, index, pixels = request.get("length"), request.get("index"), request.get("pixels")
    if isinstance(length, bool) or not isinstance(length, (int, float)) or not 0 <= length <= LONGEST:
        raise ArgumentError(f"length is {str(length)[:40]!r}: it must be a number from 0 to {LONGEST:g}")
    if pixels is not None:
        return Chosen(_pixels(pixels, models[0].shape)), float(length)
    data = models[0].data
    count = 0 if data is None else len(data.test)
    if type(index) is not int or not 0 <= index < count or data is None:
        raise ArgumentError(f"index is {str(index)[:40]!r}: there are {count} test images, counted from 0")
    return Chosen(np.array(data.test.images[index]), index, int(data.test.labels[index])), float(length)


def _pixels(text: Any, shape: tuple[int, int, int]) -> Any:
    try:
        content = base64.b64decode(text, validate=True)
        return np.frombuffer(content, np.uint8).reshape(shape)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ArgumentError(f"pixels must be the base64 of {shape} bytes ({error})") from error


def look(models: Sequence[ExploredModel], chosen: Chosen, length: float) -> dict[str, Any]:
    """The image under attack, as each model sees it."""
    label = None if chosen.label is None else models[0].classes[chosen.label]
    image = {"index": chosen.index, "label": label, "picture": data_uri(chosen.pixels)}
    return {"length": length, "image": image, "models": [_seen(model, chosen, length) for model in models]}


def _seen(model: ExploredModel, chosen: Chosen, length: float) -> dict[str, Any]:
    image = to_input(chosen.pixels)
    found = model.predict(image)
    logits = model.logits(image) if found is None else found.logits[0]
    prediction = int(logits.argmax())
    with model.lock:
        attack = model.search(image, prediction, length)
    radius = None if found is None else float(found.radii[0])
    return {
        "name": model.name,
        "refusal": model.refusal or None,
        "prediction": model.classes[prediction],
        "right": None if chosen.label is None else prediction == chosen.label,
        "margin": float(logits.topk(2).values.diff().neg()),
        "radius": radius,
        "meaning": None if radius is None else in_words(radius, image.shape[-3]),
        "arithmetic": ARITHMETIC if found is not None else "as the model runs",
        "logits": logits.tolist(),
        "rivals": [] if found is None else _rivals(model, found),
        "attack": _attacked(model, attack, image, prediction),
        "nearest_attack": attack.nearest,
        "gap": None if radius is None or attack.nearest is None else attack.nearest - radius,
        "certified_accuracy": _certified(model, length),
    }


def _rivals(model: ExploredModel, found: Predictions) -> list[dict[str, Any]]:
    """Every other class: its margin, its own certified radius, and True where that is the radius of the image."""
    prediction, rival = int(found.classes[0]), int(found.rivals[0])
    rows = [
        {
            "class": name,
            "margin": float(found.logits[0, prediction] - found.logits[0, number]),
            "radius": float(found.rival_radii[0, number]),
            "decides": number == rival,
        }
        for number, name in enumerate(model.classes)
        if number != prediction
    ]
    return sorted(rows, key=lambda row: row["radius"])


def _attacked(model: ExploredModel, attack: Found, image: Tensor, prediction: int) -> dict[str, Any]:
    change = (attack.image - image.double()).numpy()
    peak = float(np.abs(change).max())
    now, others = int(attack.logits.argmax()), attack.logits[torch.arange(len(attack.logits)) != prediction]
    return {
        "prediction": model.classes[now],
        "changed": now != prediction,
        "distance": attack.distance,
        "margin": float(attack.logits[prediction] - others.max()),
        "logits": attack.logits.tolist(),
        "picture": data_uri(np.rint(attack.image.numpy() * 255).astype(np.uint8)),
        "difference": data_uri(stretched(change)),
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


class TooLargeError(SkewconvError):
    """A body above the limit."""


async def bounded(stream: AsyncIterator[bytes], length: str | None, most: int) -> bytes:
    """The body of a request; raises above ``most`` bytes, before reading if its Content-Length says so."""
    refusal = f"the file has more than {most / 1e6:g} MB: make it smaller"
    if length is not None and (not length.isdigit() or int(length) > most):
        raise TooLargeError(refusal)
    found = bytearray()
    async for chunk in stream:
        found += chunk
        if len(found) > most:
            raise TooLargeError(refusal)
    return bytes(found)


def error_handlers(answer: Callable[..., Any]) -> dict[type[Exception], Any]:
    """The handlers of a server's own errors, for answers (document, status, headers)."""

    async def too_large(request: Any, error: Exception) -> Any:
        return answer({"error": str(error)}, 413, {"connection": "close"})

    async def refused(request: Any, error: Exception) -> Any:
        return answer({"error": str(error)}, 400)

    return {TooLargeError: too_large, SkewconvError: refused}


def read_upload(content: bytes, name: str, shape: tuple[int, int, int]) -> tuple[Any, tuple[int, int]]:
    """The pixels of an uploaded picture at the size of a network, and its own (height, width)."""
    (height, width), _ = look_at(content, name)
    if height * width > MOST_PIXELS:
        raise TooLargeError(f"{name} has {width} x {height} pixels, more than {MOST_PIXELS:,}: make it smaller")
    return np.ascontiguousarray(read_picture(content, name, shape, resize=True)), (height, width)


def uploaded(content: bytes, shape: tuple[int, int, int]) -> dict[str, str]:
    """An uploaded picture at the size of the network: its pixels, for requests, an address to show it, and a note."""
    pixels, (height, width) = read_upload(content, "the file", shape)
    size = f"{width} x {height} pixels"
    note = size if (height, width) == shape[1:] else f"resized and cropped from {size}"
    return {"pixels": base64.b64encode(pixels.tobytes()).decode(), "picture": data_uri(pixels), "note": note}
