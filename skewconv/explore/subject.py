"""One model under the lens: certified if it can be, frozen for speed, with its test images."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skewconv.certify import Certifier, audit
from skewconv.certify.predict import Predictions, predict
from skewconv.errors import ArgumentError, SkewconvError
from skewconv.explore.search import Search
from skewconv.frozen import freeze
from skewconv.records import RecordError
from skewconv.report.collect import run_names
from skewconv.report.stored import COLUMNS, CertificateTable, stored_certificates, stored_record
from skewconv.train.data import Dataset
from skewconv.train.data.images import to_input
from skewconv.train.paths import AUDIT
from skewconv.train.run import Run, open_run

_SURVEYED = 512
# Small, since whoever moves the slider waits for the end of one.
_BATCH = 8


@dataclass
class Subject:
    """A model, and all that the page asks of it. One computation at a time: see ``lock``.

    Arguments:
        name: for a person.
        run: where it comes from.
        certifier: proves its radii; None if it cannot be certified.
        refusal: why not; empty otherwise.
        search: attacks it.
        data: its dataset; None if that cannot be had.
        certificates: of many test images; None until there are some.
    """

    name: str
    run: Run
    certifier: Certifier | None
    refusal: str
    search: Search
    data: Dataset | None
    certificates: CertificateTable | None

    def __post_init__(self) -> None:
        self.lock = threading.Lock()

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.run.input_shape
        return channels, height, width

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
            return self.search.judged(image[None].double())[0]

    @cached_property
    def layers(self) -> dict[str, Any]:
        """The results of its audit: those on disk, or of a short one made now; a refusal where it has no bound."""
        try:
            return dict(stored_record(self.run, self.run.path / AUDIT)["results"])
        except RecordError:
            pass
        try:
            with self.lock:
                return dict(audit(self.run.model, self.shape, dense_limit=256, steps=6)["results"])
        except SkewconvError as error:
            return {"refusal": str(error)}

    def survey(self, stop: threading.Event) -> None:
        """Certify some test images, a batch at a time so that a person is not kept waiting; for a thread of its own."""
        if self.certificates is not None or self.certifier is None or self.data is None:
            return
        test = self.data.test
        rows = np.arange(min(_SURVEYED, len(test))) * len(test) // min(_SURVEYED, len(test))
        parts: list[list[np.ndarray[Any, Any]]] = []
        for chosen in np.array_split(rows, max(1, len(rows) // _BATCH)):
            if stop.is_set():
                return
            pixels, labels = test.take(chosen)
            with self.lock:
                found = self.certifier(to_input(pixels), torch.from_numpy(labels))
            parts.append([chosen, labels, *(t.cpu().numpy() for t in (found.predictions, found.margins, found.radii))])
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        origin = f"of {len(rows):,} test images, made for this page"
        self.certificates = CertificateTable(**dict(zip(COLUMNS, columns, strict=True)), origin=origin)


def open_subjects(paths: Sequence[Path | str], note: Callable[[str], None] = lambda text: None) -> list[Subject]:
    """Open runs to explore side by side; they take images of one shape, and have the same classes."""
    runs = [open_run(path) for path in paths]
    for run in runs[1:]:
        for what, one, other in (
            ("images of the shape", runs[0].input_shape, run.input_shape),
            ("the classes", runs[0].data.classes, run.data.classes),
        ):
            if tuple(one) != tuple(other):
                raise ArgumentError(
                    f"{runs[0].name} has {what} {tuple(one)}, {run.name} {tuple(other)}: side by side they must agree"
                )
    subjects = []
    for run, name in zip(runs, run_names([run.name for run in runs]), strict=True):
        note(f"preparing {name}")
        subjects.append(_subject(run, name))
    return subjects


def _subject(run: Run, name: str) -> Subject:
    shape = tuple(run.input_shape)
    try:
        certifier, refusal = Certifier(run.model, shape), ""
    except SkewconvError as error:
        certifier, refusal = None, str(error)
    try:
        data = run.dataset()
    except SkewconvError:
        data = None
    fast = _fast(run.model, shape)
    judged = certifier.logits if certifier is not None else _double(fast)
    return Subject(name, run, certifier, refusal, Search(fast, judged), data, stored_certificates(run)[0])


def _fast(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Frozen where that can be done, several times as fast and the same up to rounding."""
    try:
        return freeze(model, shape).model.eval().requires_grad_(False)
    except SkewconvError:
        return model.eval().requires_grad_(False)


def _double(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model's own arithmetic, with its logits widened: what is shown of a model that is not certified."""

    def logits(images: Tensor) -> Tensor:
        with torch.no_grad():
            return model(images.float()).double()

    return logits
