"""Predictions and certified radii for unlabelled images."""

import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.certify.certifier import Certifier
from skewconv.certify.float32 import DifferenceMeter, Float32Slack, largest_norm
from skewconv.checks import check_counts
from skewconv.errors import ArgumentError

# Images of noise that are measured besides those given, which may be few.
_NOISE = 16
# Quantiles of fewer images say little.
_FEW = 50
_THREE_DIGITS = decimal.Context(prec=3, rounding=decimal.ROUND_DOWN)


@dataclass(frozen=True)
class Predictions:
    """Classes and radii of n images, proven for the network in float64, as :class:`skewconv.certify.Certifier` runs it.

    The network in float32 is another program: its logits differ by about 1e-6, and it has radii of its own.

    Arguments:
        classes, runners_up: (n,) int64, the classes with the largest and the second largest logit.
        margins: (n,) float64, the difference of these logits.
        radii: (n,) float64, proven l2 radii in the units of the images; 0 where nothing is proven.
        rivals: (n,) int64, the class that decides each radius.
        rival_radii: (n, classes) float64, the radius against each class alone; infinite for the prediction itself.
        logits: (n, classes) float64.
        radii_float32: (n,) float64, less by the slack of the model in its own precision, if that was asked for.
        slack: how far the model in its own precision may be from the float64 program, and how that is known.
        below: (n,) float64, the share of the test images with smaller radii, if the run of the model was certified.
    """

    classes: Tensor
    runners_up: Tensor
    margins: Tensor
    radii: Tensor
    rivals: Tensor
    rival_radii: Tensor
    logits: Tensor
    radii_float32: Tensor | None = None
    slack: Float32Slack | None = None
    below: Tensor | None = None

    def __len__(self) -> int:
        return len(self.classes)

    def rows(self, names: Sequence[str], channels: int) -> list[dict[str, Any]]:
        """One prediction each, as plain values, with the names of the classes and the meaning in words."""
        numbers = [self.margins, self.radii, self.classes, self.runners_up, self.rivals]
        rows = [
            {
                "class": names[predicted],
                "runner_up": names[runner_up],
                "margin": margin,
                "radius": radius,
                "decided_by": names[rival],
                "arithmetic": "float64",
                "meaning": in_words(radius, channels),
            }
            for margin, radius, predicted, runner_up, rival in zip(*(each.tolist() for each in numbers), strict=True)
        ]
        for number, row in enumerate(rows):
            if self.radii_float32 is not None:
                row["radius_float32"] = float(self.radii_float32[number])
            if self.below is not None:
                share = float(self.below[number])
                row |= {"share_of_smaller_test_radii": share, "place": place_in_words(share)}
        return rows


def predict(
    model: nn.Module | Certifier, images: Tensor, *, batch_size: int = 128, float32: bool = False
) -> Predictions:
    """The class of each image, its margin, and the l2 radius within which no point has another class: proven.

    >>> from skewconv.models import LipConvnet
    >>> model = LipConvnet(5, in_channels=1, input_size=8, width=4)
    >>> found = predict(model, torch.rand(2, 1, 8, 8))
    >>> found.classes.shape, found.radii.shape, bool((found.radii >= 0).all())
    (torch.Size([2]), torch.Size([2]), True)

    To prepare a model costs more than an image does. A program that predicts again and again prepares it once:

    >>> certifier = Certifier(model, (1, 8, 8))
    >>> for batch in torch.rand(3, 2, 1, 8, 8):
    ...     radii = predict(certifier, batch).radii

    Args:
        model: images to logits, made of layers with a known bound; or a :class:`skewconv.certify.Certifier` of one.
        images: (n, *shape), floating, in [0, 1].
        batch_size: images at a time.
        float32: also state radii for the model in its own precision. Its distance from the float64 program is the one
            that the certificates of its run measured; or it is proven, where a bound is sharp, or measured on these
            images, where a short attack moves them, and on noise.
    """
    check_counts(batch_size=batch_size)
    certifier = model if isinstance(model, Certifier) else Certifier(model, tuple(images.shape[1:]))
    parts = [_batch(certifier, batch) for batch in images.split(batch_size)]
    columns: list[Any] = [torch.cat(column) for column in zip(*parts, strict=True)]
    found = Predictions(*columns)
    found = replace(found, below=_share_below(certifier, found.radii))
    if not float32:
        return found
    chunks = torch.arange(len(images)).split(batch_size)
    slack = Float32Slack.kept(certifier) or _measured_slack(model, certifier, images, found, chunks)
    given = [(images[rows], found.logits[rows], found.classes[rows]) for rows in chunks]
    radii = [certifier.radii_by_rival(*batch, slack.growth).amin(1) for batch in given]
    return replace(found, radii_float32=torch.cat(radii), slack=slack)


def _measured_slack(
    model: nn.Module | Certifier, certifier: Certifier, images: Tensor, found: Predictions, chunks: Sequence[Tensor]
) -> Float32Slack:
    if isinstance(model, Certifier):
        raise ArgumentError("float32=True asks how the model itself computes: give the model, not its Certifier")
    meter = DifferenceMeter(model, certifier)
    noise = torch.rand(_NOISE, *images.shape[1:], generator=torch.Generator().manual_seed(0))
    meter.measure_clean(noise, certifier.logits(noise))
    for rows in chunks:
        meter.measure_clean(images[rows], found.logits[rows])
        meter.measure_attacked(images[rows], found.classes[rows].to(images.device), found.radii[rows].to(images.device))
    return meter.slack(found.margins.cpu(), found.radii.cpu(), largest_norm(images))


def _share_below(certifier: Certifier, radii: Tensor) -> Tensor | None:
    """The share of the test images whose predictions have smaller radii, from their quantiles 0% to 100%."""
    kept, images = certifier.kept.get("prediction_radii"), certifier.kept.get("images")
    if certifier.kept.get("split", "test") != "test" or not isinstance(images, int) or images < _FEW:
        return None
    if not isinstance(kept, list) or len(kept) != 101 or not all(isinstance(value, float) for value in kept):
        return None
    levels = torch.tensor(kept, dtype=torch.float64, device=radii.device).sort().values
    return (torch.searchsorted(levels, radii.double()).double() / 100).clamp_max(1.0)


def place_in_words(share: float) -> str:
    """Where a radius lies among those of the test images, of which this share is smaller."""
    word, percent = ("larger", share * 100) if share >= 0.5 else ("smaller", 100 - share * 100)
    return f"{word} than {'all' if percent >= 100 else f'{percent:.0f}%'} of those of the test images"


def _batch(certifier: Certifier, images: Tensor) -> tuple[Tensor, ...]:
    logits = certifier.logits(images)
    classes = logits.argmax(1)
    gaps = certifier.gaps(logits, classes)
    rival_radii = certifier.radii_by_rival(images, logits, classes)
    # Where nothing is proven the radii are alike, and the runner-up is the rival to name.
    runners_up = gaps.argmin(1)
    radii, rivals = rival_radii.min(1)
    return classes, runners_up, gaps.amin(1), radii, torch.where(radii > 0, rivals, runners_up), rival_radii, logits


def in_words(radius: float, channels: int = 1) -> str:
    """What a radius means, in a sentence; it is rounded down.

    A pixel of several channels is moved by the root of their number as far, where all of them change alike.

    >>> print(in_words(0.3137, channels=3))
    no change shorter than 0.313 in l2, for example 46/255 on one pixel, can alter this
    """
    if not radius > 0:
        return "nothing is proven: the smallest change may alter this"
    if math.isinf(radius):
        return "no change at all can alter this"
    # Shorter than the radius, also where that is a whole number of levels.
    levels = math.ceil(radius * 255 / math.sqrt(channels) * (1 - 1e-12)) - 1
    if levels == 0:
        return f"no change shorter than {rounded_down(radius)} in l2, less than 1/255 on one pixel, can alter this"
    example = f"for example {levels}/255 on one pixel" if levels < 255 else "not even one pixel from black to white"
    return f"no change shorter than {rounded_down(radius)} in l2, {example}, can alter this"


def rounded_down(radius: float) -> str:
    """Three digits that claim no more than the radius does: 0.31999 -> '0.319'."""
    if not math.isfinite(radius):
        return f"{radius:g}"
    return f"{_THREE_DIGITS.create_decimal_from_float(radius).normalize():g}"
