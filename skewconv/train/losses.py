"""The losses, and the attacks in l-infinity of adversarial training (Wong et al. 2020) and its evaluation.

Margins are in units of the logits. A network that is L-Lipschitz from pixels to logits turns a margin m into a
certified radius m / (sqrt(2) L).
"""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from skewconv.certify import perturb
from skewconv.certify.margins import margin_of
from skewconv.certify.perturb import PGD, Model
from skewconv.config import RegimeConfig


def certificate_regulariser(logits: Tensor, labels: Tensor, lipschitz: float = 1.0) -> Tensor:
    """- mean relu(margin / (sqrt(2) L)): the mean certified radius in pixels, negated (Singla et al. 2022)."""
    return -F.relu(margin_of(logits, labels)).mean() / (math.sqrt(2) * lipschitz)


def loss_of(logits: Tensor, labels: Tensor, config: RegimeConfig, lipschitz: float = 1.0) -> Tensor:
    """The loss of a batch, a scalar: (N, classes), (N,) -> ().

    Args:
        logits: (N, classes).
        labels: (N,).
        config: the loss.
        lipschitz: L, from pixels to logits; what the certificate regulariser divides margins by.
    """
    logits = logits.float()
    asked = logits
    if config.offset:
        asked = logits - config.offset * F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    if config.loss == "margin":
        loss = F.relu(1 - config.logit_scale * margin_of(asked, labels)).mean()
    else:
        scaled = asked * config.logit_scale
        # Divided again, so that the scale sets the temperature and not the size of the gradient.
        loss = F.cross_entropy(scaled, labels, label_smoothing=config.label_smoothing) / config.logit_scale
    if config.gamma:
        loss = loss + config.gamma * certificate_regulariser(logits, labels, lipschitz)
    return loss


def random_start(shape: torch.Size | tuple[int, ...], epsilon: float, generator: Generator) -> Tensor:
    """Uniform in [-epsilon, epsilon], drawn on the CPU: the same on every device."""
    return torch.empty(shape).uniform_(-epsilon, epsilon, generator=generator)


def fgsm_from_start(model: Model, images: Tensor, labels: Tensor, start: Tensor, epsilon: float, step: float) -> Tensor:
    """One signed gradient step from a random start: images (N, C, H, W) in [0, 1] -> attacked images, likewise.

    Args:
        model: images to logits.
        images: (N, C, H, W).
        labels: (N,).
        start: the first perturbation, shaped as the images; see `random_start`.
        epsilon: radius of the ball.
        step: step length; Wong et al. take 1.25 epsilon.
    """
    radii = images.new_full((len(images),), epsilon)
    return perturb.fgsm(model, images, labels, radii, start=start.to(images), step_size=step / epsilon)


def pgd_survivors(model: Model, images: Tensor, labels: Tensor, regime: RegimeConfig, generator: Generator) -> Tensor:
    """(N,) bool: images classified correctly before, and under PGD after every restart.

    Success is decided by the forward pass on the clipped image; images that fell are attacked no more.
    """
    epsilon = regime.epsilon
    attack = PGD("linf", regime.pgd_steps, step_size=regime.pgd_step / epsilon, loss="cross-entropy")
    radii = images.new_full((len(images),), epsilon)
    with torch.no_grad():
        standing = model(images).argmax(1) == labels
    for _ in range(regime.pgd_restarts):
        index = standing.nonzero()[:, 0]
        if not len(index):
            break
        # Drawn for all images, so that the starts of one do not depend on the fate of the others.
        start = random_start(images.shape, epsilon, generator).to(images)[index]
        attacked, _ = attack.climb(model, images[index], labels[index], radii[index], start)
        with torch.no_grad():
            standing[index] = model(attacked).argmax(1) == labels[index]
    return standing
