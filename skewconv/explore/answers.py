"""What the page is told, as plain JSON: a model, a test image, and an image under attack."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skewconv.certify.predict import ARITHMETIC, Predictions, in_words
from skewconv.errors import ArgumentError
from skewconv.explore.search import Found
from skewconv.explore.subject import Subject
from skewconv.report.pictures import data_uri, stretched
from skewconv.train.data.images import to_input

#: attacks may be this long, however large the radius is
LONGEST = 100.0
_THUMBNAILS = 60


@dataclass(frozen=True)
class Chosen:
    """The image that a person looks at: (C, H, W) uint8, and its number and label if it is a test image."""

    pixels: Any
    index: int | None
    label: int | None

    @property
    def tensor(self) -> Tensor:
        """(C, H, W) float32 in [0, 1]."""
        return to_input(self.pixels)


def describe(subjects: Sequence[Subject]) -> dict[str, Any]:
    """The models: names, classes, shape, bound or refusal."""
    data = subjects[0].data
    return {
        "classes": list(subjects[0].classes),
        "shape": list(subjects[0].shape),
        "test_images": 0 if data is None else len(data.test),
        "models": [
            {
                "name": subject.name,
                "refusal": subject.refusal or None,
                "lipschitz_upper_bound": None if subject.certifier is None else subject.certifier.lipschitz,
                "arithmetic": ARITHMETIC,
            }
            for subject in subjects
        ],
    }


def thumbnails(subject: Subject, start: int, label: int | None) -> dict[str, Any]:
    """Some test images from a place on, of one class or of all; and the place to go on from, None at the end."""
    if subject.data is None:
        return {"images": [], "next": None}
    test = subject.data.test
    rows = np.arange(len(test)) if label is None else np.flatnonzero(test.labels == label)
    chosen = rows[np.searchsorted(rows, start) :][: _THUMBNAILS + 1]
    images = [
        {"index": int(row), "label": subject.classes[int(test.labels[row])], "picture": data_uri(test.images[row])}
        for row in chosen[:_THUMBNAILS]
    ]
    return {"images": images, "next": int(chosen[_THUMBNAILS]) if len(chosen) > _THUMBNAILS else None}


def choose(subjects: Sequence[Subject], request: Any) -> tuple[Chosen, float]:
    """The image and the length of a request ``{"index": 3, "length": 0.1}`` or ``{"pixels": base64, ...}``, checked."""
    if not isinstance(request, dict):
        raise ArgumentError("the request must be a JSON object with index or pixels, and length")
    length, index, pixels = request.get("length"), request.get("index"), request.get("pixels")
    if isinstance(length, bool) or not isinstance(length, (int, float)) or not 0 <= length <= LONGEST:
        raise ArgumentError(f"length is {str(length)[:40]!r}: it must be a number from 0 to {LONGEST:g}")
    if pixels is not None:
        return Chosen(_decoded(pixels, subjects[0].shape), None, None), float(length)
    data = subjects[0].data
    count = 0 if data is None else len(data.test)
    if type(index) is not int or not 0 <= index < count or data is None:
        raise ArgumentError(f"index is {str(index)[:40]!r}: there are {count} test images, counted from 0")
    return Chosen(np.array(data.test.images[index]), index, int(data.test.labels[index])), float(length)


def _decoded(text: Any, shape: tuple[int, int, int]) -> Any:
    try:
        content = base64.b64decode(text, validate=True)
        return np.frombuffer(content, np.uint8).reshape(shape)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ArgumentError(f"pixels must be the base64 of {shape} bytes ({error})") from error


def encoded(pixels: Any) -> str:
    """Pixels (C, H, W) uint8 as the page sends them back."""
    return base64.b64encode(np.ascontiguousarray(pixels).tobytes()).decode()


def look(subjects: Sequence[Subject], chosen: Chosen, length: float) -> dict[str, Any]:
    """The image under attack, as each model sees it."""
    label = None if chosen.label is None else subjects[0].classes[chosen.label]
    image = {"index": chosen.index, "label": label, "picture": data_uri(chosen.pixels)}
    return {"length": length, "image": image, "models": [_seen(subject, chosen, length) for subject in subjects]}


def _seen(subject: Subject, chosen: Chosen, length: float) -> dict[str, Any]:
    image = chosen.tensor
    found = subject.predict(image)
    logits = subject.logits(image) if found is None else found.logits[0]
    prediction = int(logits.argmax())
    with subject.lock:
        attack = subject.search(image, prediction, length)
    radius = None if found is None else float(found.radii[0])
    return {
        "name": subject.name,
        "refusal": subject.refusal or None,
        "prediction": subject.classes[prediction],
        "right": None if chosen.label is None else prediction == chosen.label,
        "margin": float(logits.topk(2).values.diff().neg()),
        "radius": radius,
        "meaning": None if radius is None else in_words(radius, image.shape[-3]),
        "arithmetic": ARITHMETIC if found is not None else "as the model runs",
        "logits": logits.tolist(),
        "rivals": [] if found is None else _rivals(subject, found),
        "attack": _attacked(subject, chosen, attack, prediction),
        "nearest_attack": attack.nearest,
        "gap": None if radius is None or attack.nearest is None else attack.nearest - radius,
        "certified_accuracy": _certified(subject, length),
    }


def _rivals(subject: Subject, found: Predictions) -> list[dict[str, Any]]:
    """Every other class: how far below it is in logits, within which radius it is proven away, which one decides."""
    prediction, rival = int(found.classes[0]), int(found.rivals[0])
    rows = [
        {
            "class": name,
            "margin": float(found.logits[0, prediction] - found.logits[0, number]),
            "radius": float(found.rival_radii[0, number]),
            "decides": number == rival,
        }
        for number, name in enumerate(subject.classes)
        if number != prediction
    ]
    return sorted(rows, key=lambda row: row["radius"])


def _attacked(subject: Subject, chosen: Chosen, attack: Found, prediction: int) -> dict[str, Any]:
    change = (attack.image - chosen.tensor.double()).numpy()
    peak = float(np.abs(change).max())
    now = int(attack.logits.argmax())
    return {
        "prediction": subject.classes[now],
        "changed": now != prediction,
        "distance": attack.distance,
        "margin": float(attack.logits[prediction] - _without(attack.logits, prediction).max()),
        "logits": attack.logits.tolist(),
        "picture": data_uri(np.rint(attack.image.numpy() * 255).astype(np.uint8)),
        "difference": data_uri(stretched(change)),
        "magnified": 0.5 / peak if peak > 0 else None,
        "largest_change": peak,
    }


def _without(logits: Tensor, number: int) -> Tensor:
    return torch.cat([logits[:number], logits[number + 1 :]])


def _certified(subject: Subject, length: float) -> dict[str, Any] | None:
    table = subject.certificates
    if table is None:
        return None
    # At length zero nothing has moved: what is right is right.
    share = float(table.right.mean()) if length == 0 else table.certified_at(length)
    return {"share": share, "images": len(table), "origin": table.origin}
