"""Attacks within an l-infinity ball: one step for training (Wong et al. 2020), many with restarts for evaluation."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

Model = Callable[[Tensor], Tensor]


def random_start(shape: torch.Size | tuple[int, ...], epsilon: float, generator: Generator) -> Tensor:
    """Uniform in [-epsilon, epsilon], drawn on the CPU: the same on every device."""
    return torch.empty(shape).uniform_(-epsilon, epsilon, generator=generator)


def fgsm(model: Model, images: Tensor, labels: Tensor, start: Tensor, epsilon: float, step: float) -> Tensor:
    """One signed gradient step from a random start: images (N, C, H, W) in [0, 1] -> attacked images, likewise.

    Args:
        model: images to logits.
        images: (N, C, H, W).
        labels: (N,).
        start: the first perturbation, as the images; see `random_start`.
        epsilon: the radius of the ball.
        step: the length of the step; Wong et al. take 1.25 epsilon.
    """
    return _ascend(model, images, labels, _within(images, start.to(images), epsilon), epsilon, step)


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
    with torch.no_grad():
        standing = model(images).argmax(1) == labels
    for _ in range(restarts):
        index = standing.nonzero()[:, 0]
        if not len(index):
            break
        some, their = images[index], labels[index]
        # Drawn for all images, so that the starts of one do not depend on the fate of the others.
        start = random_start(images.shape, epsilon, generator).to(images)[index]
        attacked = _within(some, start, epsilon)
        for _ in range(steps):
            attacked = _ascend(model, some, their, attacked, epsilon, step)
        with torch.no_grad():
            standing[index] = model(attacked).argmax(1) == their
    return standing


def _ascend(model: Model, images: Tensor, labels: Tensor, at: Tensor, epsilon: float, step: float) -> Tensor:
    with torch.enable_grad():
        point = at.detach().requires_grad_()
        loss = F.cross_entropy(model(point).float(), labels)
        (gradient,) = torch.autograd.grad(loss, point)
    return _within(images, point.detach() + step * gradient.sign() - images, epsilon)


def _within(images: Tensor, change: Tensor, epsilon: float) -> Tensor:
    return (images + change.clamp(-epsilon, epsilon)).clamp(0, 1)
