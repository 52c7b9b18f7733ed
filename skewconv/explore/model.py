"""The models of the page: certified if possible, frozen for speed, with their test images and the slider's attack."""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.certify import PGD, Certifier, audit
from skewconv.certify.certificates import Certificates
from skewconv.certify.predict import Predictions, predict
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.frozen import freeze
from skewconv.records import RecordError
from skewconv.report.collect import RunFacts, run_names, stored_certificates, stored_record
from skewconv.report.figures import certified_accuracy, largest_radius
from skewconv.report.page import figure_svg
from skewconv.train.data import Dataset
from skewconv.train.data.images import to_input
from skewconv.train.paths import AUDIT
from skewconv.train.run import Run, open_run

_SURVEYED = 512
# Small, since the slider waits for the end of a batch.
_BATCH = 8
# The settings of a drawing are global to matplotlib.
_DRAWING = threading.Lock()
# Random starts of an attack, beside the image itself and the last result; lengths tried along a change; images kept.
_RANDOM, _FRACTIONS, _KEPT = 2, 16, 64


@dataclass(frozen=True)
class Found:
    """The result of an attack: the moved image (*shape), float64, its l2 distance and its logits (classes,).

    nearest is the smallest distance at which any attack on this image, so far, found another class; None if none did.
    """

    image: Tensor
    distance: float
    logits: Tensor
    nearest: float | None


@dataclass
class Trail:
    """The memory of one image: its last change, and the shortest distance at which its class was altered."""

    change: Tensor | None = None
    nearest: float | None = None


@dataclass
class Search:
    """Attacks one image at a time, at any length, and starts from the last result.

    The gradient is that of ``fast``, frozen and in float32; ``logits``, in float64, decide the class.
    """

    fast: nn.Module
    logits: Callable[[Tensor], Tensor]
    steps: int = 12
    trails: "OrderedDict[bytes, Trail]" = field(default_factory=OrderedDict)

    def __call__(self, image: Tensor, prediction: int, length: float) -> Found:
        """Look for another class than the prediction within an l2 length of an image (*shape), float32, in [0, 1]."""
        trail = self._trail(image)
        exact = image.double()
        if length <= 0:
            return Found(exact, 0.0, self.logits(exact[None])[0], trail.nearest)
        best = self._climb(image, prediction, length, trail)
        moved = _inside(best.double(), exact, length)
        logits = self.logits(moved[None])[0]
        distance = float(torch.linalg.vector_norm(moved - exact))
        trail.change = (moved - exact).to(image.dtype)
        if int(logits.argmax()) != prediction:
            self._shorten(exact, moved - exact, distance, prediction, trail)
        return Found(moved, distance, logits, trail.nearest)

    def _trail(self, image: Tensor) -> Trail:
        key = image.contiguous().numpy().tobytes()
        trail = self.trails.pop(key, None) or Trail()
        self.trails[key] = trail
        while len(self.trails) > _KEPT:
            self.trails.popitem(last=False)
        return trail

    def _climb(self, image: Tensor, prediction: int, length: float, trail: Trail) -> Tensor:
        """The best of ascents from the image, from the last change scaled to the length, and from random points."""
        generator = torch.Generator().manual_seed(0)
        starts = torch.randn(_RANDOM + 2, *image.shape, generator=generator)
        starts[0] = 0
        if trail.change is not None and bool(trail.change.any()):
            starts[1] = trail.change
        norms = torch.linalg.vector_norm(starts.flatten(1), dim=1).clamp_min(1e-12)
        starts = starts * (length / norms).view(-1, *(1,) * image.dim())
        many = image.expand(len(starts), *image.shape)
        labels = torch.full((len(starts),), prediction)
        radii = torch.full((len(starts),), length)
        attack = PGD("l2", steps=self.steps, step_size=0.25, random_start=False)
        places, margins = attack.climb(self.fast, many, labels, radii, starts)
        return places[int(margins.argmin())]

    def _shorten(self, image: Tensor, change: Tensor, distance: float, prediction: int, trail: Trail) -> None:
        """The shortest of a few lengths along the same change that still alters the class."""
        shares = torch.arange(1, _FRACTIONS + 1, dtype=torch.float64) / _FRACTIONS
        points = image + shares.view(-1, *(1,) * image.dim()) * change
        other = self.logits(points).argmax(1) != prediction
        nearest = distance * float(shares[other][0])
        trail.nearest = nearest if trail.nearest is None else min(trail.nearest, nearest)


def _inside(moved: Tensor, image: Tensor, length: float) -> Tensor:
    """The point moved into the open ball, rounding included; float64."""
    change = moved - image
    size = float(torch.linalg.vector_norm(change))
    scale = min(1.0, length / size * (1 - 1e-9)) if size > 0 else 1.0
    return (image + change * scale).clamp(0, 1)


@dataclass
class ExploredModel:
    """A model and what the page shows of it. One computation at a time: see ``lock``.

    Without a certifier, ``refusal`` is the reason; ``certificates`` of many test images are None until there are some.
    """

    name: str
    run: Run
    certifier: Certifier | None
    refusal: str
    search: Search
    data: Dataset | None
    certificates: Certificates | None
    origin: str

    def __post_init__(self) -> None:
        self.lock = threading.Lock()

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return cast("tuple[int, int, int]", tuple(self.run.input_shape))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.run.data.classes

    def predict(self, image: Tensor) -> Predictions | None:
        """The prediction and its radius of an image (*shape); None where nothing can be proven."""
        with self.lock:
            return None if self.certifier is None else predict(self.certifier, image[None])

    def logits(self, image: Tensor) -> Tensor:
        """(classes,) of an image (*shape), in float64 where the model is certified, else as it runs."""
        with self.lock:
            return self.search.logits(image[None].double())[0]

    @cached_property
    def layers(self) -> dict[str, Any]:
        """The results of its audit: those on disk, or of a short one made now; a refusal where it has no bound."""
        with contextlib.suppress(RecordError):
            return dict(stored_record(self.run, self.run.path / AUDIT)["results"])
        try:
            with self.lock:
                return dict(audit(self.run.model, self.shape, dense_limit=256, steps=6)["results"])
        except SkewconvError as error:
            return {"refusal": str(error)}

    def survey(self, stop: threading.Event) -> None:
        """Certify some test images in small batches, so that the page stays responsive; runs in a thread."""
        if self.certificates is not None or self.certifier is None or self.data is None:
            return
        test = self.data.test
        count = min(_SURVEYED, len(test))
        rows = np.arange(count) * len(test) // count
        parts: list[tuple[Tensor, ...]] = []
        for chosen in np.array_split(rows, max(1, count // _BATCH)):
            if stop.is_set():
                return
            pixels, numbers = test.take(chosen)
            labels = torch.from_numpy(numbers)
            with self.lock:
                found = self.certifier(to_input(pixels), labels)
            verdicts = (found.predictions.cpu(), found.margins.cpu(), found.radii.cpu())
            parts.append((torch.from_numpy(chosen), labels, *verdicts))
        index, label, prediction, margin, radius = map(torch.cat, zip(*parts, strict=True))
        # The page shows radii of the float64 program alone.
        unknown = torch.full_like(radius, torch.nan)
        self.origin = f"of {count:,} test images, made for this page"
        self.certificates = Certificates(index, label, prediction, margin, radius, unknown, {})


def open_models(paths: Sequence[Path | str], note: Callable[[str], None] = lambda text: None) -> list[ExploredModel]:
    """Open runs to explore side by side; they take images of one shape, and have the same classes."""
    runs = [open_run(path) for path in paths]
    facts = [(run.name, tuple(run.input_shape), tuple(run.data.classes)) for run in runs]
    for name, *found in facts[1:]:
        for what, one, other in zip(("images of the shape", "the classes"), facts[0][1:], found, strict=True):
            if one != other:
                raise ArgumentError(f"{facts[0][0]} has {what} {one}, {name} {other}: side by side they must agree")
    models = []
    for run, name in zip(runs, run_names([run.name for run in runs]), strict=True):
        note(f"preparing {name}")
        models.append(_prepared(run, name))
    return models


def _prepared(run: Run, name: str) -> ExploredModel:
    shape = tuple(run.input_shape)
    try:
        certifier, refusal = Certifier(run.model, shape), ""
    except SkewconvError as error:
        certifier, refusal = None, str(error)
    data = None
    with contextlib.suppress(SkewconvError):
        data = run.dataset()
    fast = _fast(run.model, shape)
    # A model that is not certified is shown in its own arithmetic.
    logits = certifier.logits if certifier is not None else lambda images: fast(images.float()).double()
    search = Search(fast, torch.no_grad()(logits))
    return ExploredModel(name, run, certifier, refusal, search, data, *stored_certificates(run))


def _fast(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Frozen where possible: several times as fast, and the same up to rounding."""
    with contextlib.suppress(SkewconvError):
        model = freeze(model, shape).model
    return model.eval().requires_grad_(False)


def certified_curve(models: Sequence[ExploredModel]) -> dict[str, Any]:
    """The figure as SVG, the radius at which its axis ends, and the models whose certificates are not ready."""
    # The figure reads names and certificates alone.
    shown = [SimpleNamespace(name=model.name, certificates=model.certificates, attacks=()) for model in models]
    runs = cast("list[RunFacts]", shown)
    awaited = [m.name for m in models if m.certificates is None and m.certifier is not None and m.data is not None]
    with _DRAWING:
        svg = figure_svg("certified-accuracy", certified_accuracy, runs)
    return {"svg": svg, "end": largest_radius(runs), "awaited": awaited}
