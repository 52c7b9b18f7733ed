"""The models of the page: prepared behind it, certified if possible, with their test images and the slider's attack."""

import contextlib
import copy
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.certify import PGD, Certifier
from skewconv.certify.attack import distance_on_segment
from skewconv.certify.certificates import Certificates, quantiles
from skewconv.certify.certifier import margin_of
from skewconv.certify.predict import Predictions, predict
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.frozen import freeze
from skewconv.report.collect import run_names, stored_certificates
from skewconv.train.data import Dataset
from skewconv.train.data.images import to_input
from skewconv.train.run import Run, open_run

# Test images of the survey, and of its batches: small, since the slider waits for the end of one.
_SURVEYED, _BATCH = 512, 8
# Random starts of an attack, beside the image itself and the last result; halvings of a change; images remembered.
_RANDOM, _HALVINGS, _KEPT = 2, 5, 64
# The frozen model only gives gradients.
_FROZEN_TOL = 1e-2


@dataclass
class Search:
    """Attacks one image at a time, at any length, and starts from the last result.

    ``gradients`` is in float32; ``logits``, in float64 where the model is certified, decide the class.
    """

    gradients: nn.Module
    logits: Callable[[Tensor], Tensor]
    #: by the bytes of an image: its last change, and the smallest distance at which an attack found another class
    trails: dict[bytes, tuple[Tensor | None, float | None]] = field(default_factory=dict)

    def __call__(self, image: Tensor, prediction: int, length: float) -> tuple[Tensor, Tensor, float | None]:
        """The image (*shape), float32, moved by at most `length`; its logits; the distance of the nearest attack."""
        key = image.contiguous().numpy().tobytes()
        last, nearest = self.trails[key] = self.trails.pop(key, (None, None))
        if len(self.trails) > _KEPT:
            del self.trails[next(iter(self.trails))]
        exact = image.double()
        if length <= 0:
            return exact, self.logits(exact[None])[0], nearest
        change = self._climb(image, prediction, length, last).double() - exact
        # Into the open ball, rounding included.
        size = float(torch.linalg.vector_norm(change))
        moved = (exact + change * min(1.0, length / (size or 1.0) * (1 - 1e-9))).clamp(0, 1)
        logits = self.logits(moved[None])[0]
        if int(logits.argmax()) != prediction:
            shortest = distance_on_segment(self.logits, exact[None], moved[None], torch.tensor([prediction]), _HALVINGS)
            nearest = min(float(shortest), nearest or math.inf)
        self.trails[key] = (moved - exact).to(image.dtype), nearest
        return moved, logits, nearest

    def _climb(self, image: Tensor, prediction: int, length: float, change: Tensor | None) -> Tensor:
        """The best of ascents from the image, from the last change scaled to the length, and from random points."""
        starts = torch.randn(_RANDOM + 2, *image.shape, generator=torch.Generator().manual_seed(0))
        starts[0] = 0
        if change is not None and bool(change.any()):
            starts[1] = change
        norms = torch.linalg.vector_norm(starts.flatten(1), dim=1).clamp_min(1e-12)
        starts = starts * (length / norms).view(-1, *(1,) * image.dim())
        labels, radii = torch.full((len(starts),), prediction), torch.full((len(starts),), length)
        attack = PGD("l2", steps=12, step_size=0.25, random_start=False)
        places, margins = attack.climb(self.gradients, image.expand(starts.shape), labels, radii, starts)
        return places[int(margins.argmin())]


class ExploredModel:
    """A run and what the page shows of it; :meth:`prepare` does the work, and ``progress`` says what is awaited.

    Without a certifier, ``refusal`` is the reason; ``certificates`` of many test images are None until there are some.
    """

    certifier: Certifier | None = None
    search: Search
    data: Dataset | None = None
    certificates: Certificates | None = None
    refusal = failure = missing = origin = ""

    def __init__(self, name: str, run: Run) -> None:
        channels, height, width = run.input_shape
        self.name, self.run, self.classes, self.shape = name, run, run.data.classes, (channels, height, width)
        self.progress = f"reading the images of {name}"
        #: one computation at a time
        self.lock = threading.Lock()
        self.images_are_read, self.is_ready = threading.Event(), threading.Event()

    def ready(self) -> "ExploredModel":
        """The model once it can answer, or the error that its preparation met."""
        self.is_ready.wait()
        if self.failure:
            raise ArgumentError(self.failure)
        return self

    def prepare(self, stop: threading.Event, note: Callable[[str], None] = lambda text: None) -> None:
        """Read, prove, and certify some test images, until the event is set; runs in a thread."""
        try:
            try:
                self.data = self.run.dataset()
            except SkewconvError as error:
                self.missing = f"No test images: {error}"
                note(self.missing)
            self.images_are_read.set()
            self.progress = f"proving the bounds of {self.name}"
            model = self.run.model
            try:
                self.certifier = Certifier(model, self.shape)
            except SkewconvError as error:
                self.refusal = str(error)
            # A model that is not certified is shown in its own arithmetic.
            logits = self.certifier.logits if self.certifier else lambda images: model(images.float()).double()
            self.search = Search(model, torch.no_grad()(logits))
            self.certificates, self.origin = stored_certificates(self.run)
        except SkewconvError as error:
            self.failure = str(error)
        finally:
            self.progress = ""
            self.images_are_read.set()
            self.is_ready.set()
        note(self.failure or f"ready     {self.name}")
        if not self.failure:
            threading.Thread(target=self._freeze, daemon=True).start()
            self._survey(stop)

    def _freeze(self) -> None:
        """Take gradients of the frozen model, several times as fast; of a copy, since the page uses the model."""
        # On Linux a thread has a priority of its own: freezing takes long, and the slider should not wait for it.
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        with contextlib.suppress(SkewconvError):
            frozen = freeze(copy.deepcopy(self.run.model), self.shape, tol=_FROZEN_TOL).model
            self.search.gradients = frozen.eval().requires_grad_(False)

    def _survey(self, stop: threading.Event) -> None:
        """Certify some test images in small batches, so that the page stays responsive."""
        if self.certificates is not None or self.certifier is None or self.data is None:
            return
        test = self.data.test
        count = min(_SURVEYED, len(test))
        rows = np.arange(count) * len(test) // count
        found: list[Predictions] = []
        for chosen in np.array_split(rows, max(1, count // _BATCH)):
            if stop.is_set():
                return
            with self.lock:
                found.append(predict(self.certifier, to_input(test.take(chosen)[0])))
        names = ("classes", "logits", "radii")
        prediction, logits, radius = (torch.cat([getattr(each, name) for each in found]).cpu() for name in names)
        index, label = torch.from_numpy(rows), torch.from_numpy(test.take(rows)[1]).to(torch.int64)
        self.origin = f"of {count:,} test images, made for this page"
        right = torch.where(prediction == label, radius, 0.0)
        # The page shows radii of the float64 program alone.
        columns = (index, label, prediction, margin_of(logits, label), right, torch.full_like(radius, torch.nan))
        self.certificates = Certificates(*columns, {})
        kept = {"images": count, "prediction_radii": quantiles(radius)}
        self.certifier.kept = self.certifier.kept or kept


def open_models(paths: Sequence[Path | str]) -> list[ExploredModel]:
    """Open runs to explore side by side; they take images of one shape, and have the same classes."""
    runs = [open_run(path) for path in paths]
    kinds = {(tuple(run.input_shape), tuple(run.data.classes)): run.name for run in runs}
    if len(kinds) > 1:
        found = [f"{name} takes {shape} and knows {', '.join(known)}" for (shape, known), name in kinds.items()]
        raise ArgumentError(f"side by side, runs must agree in their images and classes: {'; '.join(found)}")
    names = run_names([run.name for run in runs])
    return [ExploredModel(name, run) for name, run in zip(names, runs, strict=True)]
