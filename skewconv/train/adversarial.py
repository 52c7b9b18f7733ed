"""Attacks in l-infinity as training runs them: one step (Wong et al. 2020), and many with restarts to evaluate."""

import torch
from torch import Generator, Tensor

from skewconv.certify import perturb
from skewconv.certify.perturb import PGD, Model


def random_start(shape: torch.Size | tuple[int, ...], epsilon: float, generator: Generator) -> Tensor:
    """Uniform in [-epsilon, epsilon], drawn on the CPU: the same on every device."""
    return torch.empty(shape).uniform_(-epsilon, epsilon, generator=generator)


def fgsm_from_start(model: Model, images: Tensor, labels: Tensor, start: Tensor, epsilon: float, step: float) -> Tensor:
    """One signed gradient step from a random start: images (N, C, H, W) in [0, 1] -> attacked images, likewise.

    Args:
        model: images to logits.
        images: (N, C, H, W).
        labels: (N,).
        start: the first perturbation, as the images; see `random_start`.
        epsilon: the radius of the ball.
        step: the length of the step; Wong et al. take 1.25 epsilon.
    """
    radii = images.new_full((len(images),), epsilon)
    return perturb.fgsm(model, images, labels, radii, start=start.to(images), step_size=step / epsilon)


def pgd_survivors(
    model: Model,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    step: float,
    steps: int,
    restarts: int,
    generator: Generator,
) -> Tensor:
    """Which images are classified correctly before, and under every one of the attacks: (N,) bool.

    The judge is the forward pass on the clipped image after each restart, and images that fell are attacked no more.
    """
    attack = PGD("linf", steps, step_size=step / epsilon, loss="cross-entropy")
    radii = images.new_full((len(images),), epsilon)
    with torch.no_grad():
        standing = model(images).argmax(1) == labels
    for _ in range(restarts):
        index = standing.nonzero()[:, 0]
        if not len(index):
            break
        # Drawn for all images, so that the starts of one do not depend on the fate of the others.
        start = random_start(images.shape, epsilon, generator).to(images)[index]
        attacked, _ = attack.climb(model, images[index], labels[index], radii[index], start)
        with torch.no_grad():
            standing[index] = model(attacked).argmax(1) == labels[index]
    return standing
