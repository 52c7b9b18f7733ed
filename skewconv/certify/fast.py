"""Fast certificates: of the network frozen at a tolerance, evaluated in float64 only where something can be proven.

A certificate needs a gain of at most one, and no exact orthogonality. The frozen network is a function of its own, with
fewer products, its own proven bounds and its own radii; they are not radii of the network that it was made from.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from skewconv.certify.certifier import Certifier, Verdicts
from skewconv.certify.margins import margin_of
from skewconv.errors import ArgumentError
from skewconv.frozen import freeze
from skewconv.models.input_check import any_values
from skewconv.nn.module_tools import evaluating, first_tensor

#: by how much the outputs of the frozen network may differ from the original's, relative to the activations
FAST_TOLERANCE = 1e-3
#: so many images of a fast certificate are also measured where an attack has put them
FAST_ATTACKED_IMAGES = 200
FAST_METHOD = (
    "; the network certified is the one frozen at the tolerance that stands here, a function of its own; an image that "
    "it gets wrong in its own precision has the radius 0, and its margin is from there"
)


def fast_function(model: nn.Module, input_shape: tuple[int, ...], tol: float | None) -> nn.Module:
    """The network that a certificate speaks of: the model itself, or, with a tolerance, the model frozen at it."""
    return model if tol is None else freeze(model, input_shape, tol=tol)


def function_facts(tol: float | None) -> dict[str, Any]:
    """What a record says of it: nothing of a network as it was trained."""
    return {} if tol is None else {"function": {"kind": "frozen", "tol": tol}}


def certified_function(model: nn.Module, input_shape: tuple[int, ...], results: Mapping[str, Any]) -> nn.Module:
    """The network that the certificates of a record speak of, made anew from the model.

    Args:
        model: whose certificates they are said to be.
        input_shape: of one image.
        results: of the record beside the table.
    """
    facts = results.get("function")
    if facts is None:
        return model
    tol = facts.get("tol") if isinstance(facts, Mapping) and facts.get("kind") == "frozen" else None
    if not isinstance(tol, float):
        raise ArgumentError(f"the record speaks of the function {facts!r}, which this version does not know")
    if not 0 < tol <= FAST_TOLERANCE:
        raise ArgumentError(
            f"the record speaks of the network frozen at a tolerance of {tol:g}, where {FAST_TOLERANCE:g} is the "
            "coarsest that is certified: certify it again"
        )
    return freeze(model, input_shape, tol=tol)


def screened(model: nn.Module, certifier: Certifier, images: Tensor, labels: Tensor) -> tuple[Verdicts, Tensor, Tensor]:
    """Verdicts, float64 only for images that the model gets right in its own precision; those, and its own logits.

    Nothing can be certified of an image that is classified wrongly, so its radius is 0 without a proof.

    Args:
        model: in its own precision.
        certifier: of the same model.
        images: (n, *shape).
        labels: (n,), integers.

    Returns:
        what is said of all images; which were evaluated in float64, (n,) booleans; the model's logits (n, classes).
    """
    tensor = first_tensor(model, images)
    with evaluating(model), torch.no_grad(), any_values():
        given = model(images.to(tensor.device, tensor.dtype)).to(certifier.device, torch.float64)
    t = labels.to(given.device, torch.int64)
    # A logit that is not finite is for the proof to judge.
    hopeful = (given.argmax(1) == t) | ~torch.isfinite(given).all(1)
    logits, margins, radii = given.clone(), margin_of(given, t), given.new_zeros(len(given))
    predictions = given.argmax(1)
    chosen = hopeful.to(images.device)
    if bool(hopeful.any()):
        found = certifier(images[chosen], labels[chosen.to(labels.device)])
        parts = (predictions, margins, radii, logits)
        for whole, part in zip(parts, (found.predictions, found.margins, found.radii, found.logits), strict=True):
            whole[hopeful] = part
    return Verdicts(predictions, margins, radii, logits), hopeful, given
