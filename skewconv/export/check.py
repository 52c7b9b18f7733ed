"""The check of an exported file: its logits, classes and radii against the model and against what is proven."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from skewconv.certify import Certifier
from skewconv.certify.float32 import DifferenceMeter, Float32Slack, largest_norm
from skewconv.errors import ArgumentError, ExportError
from skewconv.export.plain import Radius
from skewconv.export.target import Runner, float32_up
from skewconv.frozen import FrozenModel
from skewconv.nn.module_tools import evaluating
from skewconv.progress import Tick

_BATCH = 128
# Three float32 roundings of 2^-24 each, with room to spare: the difference of two logits, of that and what is
# subtracted, and the quotient.
_FLOAT32_UP = 1 + 2.0**-21


class Expected(NamedTuple):
    """The outputs that a file should give for a batch of images."""

    images: Tensor  # (n, *shape), float32 in [0, 1]
    original: Tensor  # (n, classes), by the model before it was frozen, in its own precision
    frozen: Tensor  # (n, classes) in float64, by the certified program; by the frozen model where there is none
    activations: Tensor  # (n,), norm of the largest activation, which the tolerance is relative to
    radii: Tensor  # (n,), certified without a slack for float32; zeros where there is no certificate


@dataclass(frozen=True)
class Agreement:
    """Agreement of a file with the model that it was made of, on a number of images.

    ``largest_difference`` is that of a logit; ``other_classes`` counts images of another class than by the model, all
    nearer to a tie than the tolerance; ``median_radius`` is None where the file gives no radii.
    """

    images: int
    largest_difference: float
    other_classes: int
    median_radius: float | None


def expected(
    model: nn.Module, frozen: FrozenModel, certifier: Certifier | None, images: Tensor, progress: Tick | None = None
) -> list[Expected]:
    batches: list[Expected] = []
    norms: list[Tensor] = []

    def note(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        norms.extend(torch.linalg.vector_norm(t.flatten(1), dim=1).double() for t in (given[0], made))

    leaves = [module for module in frozen.model.modules() if not any(module.children())]
    with torch.no_grad(), evaluating(model):
        for batch in images.split(_BATCH):
            norms.clear()
            handles = [module.register_forward_hook(note) for module in leaves]
            try:
                logits = frozen(batch).double()
            finally:
                for handle in handles:
                    handle.remove()
            radii = torch.zeros(len(batch))
            # The certifier refuses modules with hooks.
            if certifier is not None:
                logits = certifier.logits(batch).cpu()
                radii = certifier.radii_by_rival(batch, logits, logits.argmax(1)).amin(1)
            batches.append(Expected(batch, model(batch).double(), logits, torch.stack(norms).amax(0), radii))
            if progress is not None:
                progress(sum(len(each.images) for each in batches), len(images))
    return batches


def measured_slack(
    runner: Runner, frozen: FrozenModel, certifier: Certifier, wanted: Sequence[Expected]
) -> Float32Slack:
    """The largest difference of the file's logits from the certified program's, as certify states it for the model.

    Measured on the images, and at the end of their radii where an attack on the frozen model moves them.
    """
    meter = DifferenceMeter(frozen, certifier, run=lambda images: runner(images)[0])
    for batch in wanted:
        meter.measure_clean(batch.images, batch.frozen)
        meter.measure_attacked(batch.images, batch.frozen.argmax(1), batch.radii)
    margins = [certifier.gaps(batch.frozen, batch.frozen.argmax(1)).amin(1) for batch in wanted]
    radii, norm = torch.cat([batch.radii for batch in wanted]), max(largest_norm(batch.images) for batch in wanted)
    return meter.slack(torch.cat(margins), radii, norm)


def agreement(
    runner: Runner, wanted: Sequence[Expected], tol: float, certifier: Certifier | None, slack: Float32Slack | None
) -> Agreement:
    """Run the file: the same classes, logits within the tolerance, no radius above the sound one; or an error.

    A class may differ only where two logits are nearer to each other than the tolerance and the slack allow, which is
    where neither program promises anything. The tolerance of all layers together is relative to the largest activation.
    """
    largest, others, radii = 0.0, 0, []
    for images, original, frozen, activations, _ in wanted:
        logits, radius = runner(images)
        classes = logits.argmax(1)
        differences = (logits.double() - original).abs().amax(1)
        # Rounding in float32 comes on top of the tolerance.
        allowed = (tol + 1e-5) * activations
        if not bool((differences <= allowed).all()):
            worst = int((differences / allowed).nan_to_num(torch.inf).argmax())
            raise ExportError(
                f"a logit differs by {float(differences[worst]):.2g} from the model's, and the tolerance {tol:g} "
                f"allows {float(allowed[worst]):.2g} there; no file was written"
            )
        _check_classes(original, classes, 2 * allowed, "the model")
        largest, others = max(largest, float(differences.max())), others + int((classes != original.argmax(1)).sum())
        if certifier is None or slack is None:
            continue
        if radius is None:
            raise ExportError("the file gives no radius, and should; no file was written")
        # Logits may be off by this at the image, and their differences by twice that.
        off = 2 * slack.growth.at(math.sqrt(images[0].numel()))
        _check_classes(frozen, classes, torch.full_like(allowed, off), "the certified program")
        sound = certifier.radii_by_rival(images, frozen, classes, slack.growth).amin(1)
        if not bool((radius.double() <= sound).all()) or bool((radius < 0).any()):
            raise ExportError("a radius of the file is above the one that is proven; no file was written")
        radii.append(radius.double())
    median = float(torch.cat(radii).median()) if radii else None
    return Agreement(sum(len(batch.images) for batch in wanted), largest, others, median)


def _check_classes(logits: Tensor, classes: Tensor, nearest: Tensor, whose: str) -> None:
    behind = logits.amax(1) - logits.gather(1, classes[:, None])[:, 0]
    if bool((behind > nearest).any()):
        raise ExportError(f"the file gives another class than {whose} on {int((behind > nearest).sum())} images")


def radius_rule(certifier: Certifier, slack: Float32Slack) -> Radius:
    """The rule min_i (g_t - g_i - s) / K_ti for logits g that another program computes.

    Let f be the certified program, and let g be within d of it, logit by logit, at every image. Moving x by less than r
    changes f_t - f_i by less than K_ti r, so that

        g_t(x') - g_i(x') > g_t(x) - g_i(x) - 4 d - K_ti r - (rounding of f, twice) >= 0

    for r = (g_t(x) - g_i(x) - s) / K_ti with s = 4 d and that rounding. Images of [0, 1] have a norm of at most
    sqrt(pixels), which bounds what grows with the norm; what grows on the way to x' is added to K. Rounded to float32,
    s and K are larger than they need be by more than the rule itself rounds.
    """
    norm = math.sqrt(math.prod(certifier.input_shape)) * _FLOAT32_UP
    if not norm <= certifier.reach:
        raise ArgumentError("what this model computes of images in [0, 1] may overflow, so that it has no radius")
    off = certifier.rounding.plus(slack.growth)
    # Logits that are off by e in l2 have differences that are off by sqrt(2) e: at the image and at the other point.
    subtracted = 2 * math.sqrt(2) * off.at(norm) * _FLOAT32_UP
    bounds = (certifier.pair_bounds.cpu() + math.sqrt(2) * off.slope * _FLOAT32_UP) * _FLOAT32_UP
    return Radius(
        float32_up(bounds).clamp_min(torch.finfo(torch.float32).tiny),
        float32_up(torch.tensor(subtracted, dtype=torch.float64)),
    )
