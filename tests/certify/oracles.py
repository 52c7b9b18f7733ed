"""What certificates are held against: dense matrices, true distances to decision boundaries, strong attacks."""

import copy
from fractions import Fraction

import torch
from torch import Tensor, nn

from skewconv.certify import PGD, Certifier
from skewconv.certify.programs import Float64Program, program_of
from skewconv.nn import lower
from skewconv.ops.engines.dense_engine import dense_matrix


def in_float64(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double().eval().requires_grad_(False)


def float64_program(module: nn.Module, shape: tuple[int, ...]) -> Float64Program:
    """The program of a module in float64 and eval mode, lowered as certificates lower it."""
    return program_of(lower(module, shape), shape)


def dense_of(model: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """The matrix of an affine model in float64: (outputs, inputs)."""
    exact = in_float64(model)
    with torch.no_grad():
        origin = exact(torch.zeros(1, *shape, dtype=torch.float64))
        return dense_matrix(lambda x: exact(x) - origin, shape)


def boundary_distances(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The true l2 distance of each image to the nearest decision boundary of an affine model; 0 where wrong."""
    matrix = dense_of(model, tuple(images.shape[1:]))
    with torch.no_grad():
        logits = in_float64(model)(images.double())
    distances = []
    for z, t in zip(logits, labels.tolist(), strict=True):
        others = torch.arange(len(z)) != t
        ratio = (z[t] - z[others]) / torch.linalg.vector_norm(matrix[t] - matrix[others], dim=1)
        distances.append(float(ratio.min().clamp_min(0)))
    return torch.tensor(distances, dtype=torch.float64)


def assert_sound_if_affine(model: nn.Module, shape: tuple[int, ...], count: int = 16) -> Certifier:
    """Against the exact answer: the norm of the whole map, and the distance of every image to the boundary."""
    certifier = Certifier(model, shape)
    assert certifier.lipschitz >= float(torch.linalg.matrix_norm(dense_of(model, shape), 2)) * (1 - 1e-12)
    images = torch.rand(count, *shape, dtype=torch.float64)
    labels = certifier.logits(images).argmax(1)
    radii = certifier(images, labels).radii
    assert bool((radii > 0).any())
    assert bool((radii <= boundary_distances(model, images, labels)).all())
    return certifier


def assert_sound_under_attack(model: nn.Module, images: Tensor) -> Tensor:
    """Against PGD in float64 at 0.99 of each radius; labels are the predictions, so that all can be certified."""
    exact = in_float64(model)
    with torch.no_grad():
        labels = exact(images.double()).argmax(1)
    radii = Certifier(model, tuple(images.shape[1:]))(images, labels).radii
    assert bool((radii > 0).all())
    moved = PGD(steps=20, restarts=2)(exact, images.double(), labels, 0.99 * radii)
    with torch.no_grad():
        assert torch.equal(exact(moved).argmax(1), labels)  # classes; a margin of 0.01 radii is left
    return radii


def assert_no_radius_reaches_an_exact_boundary(
    matrix: Tensor, bias: Tensor | None, images: Tensor, labels: Tensor, radii: Tensor
) -> None:
    """r^2 ||w_t - w_i||^2 <= (f_t - f_i)^2 in rational numbers, and no radius for what is not the only largest."""
    rows = [[Fraction(float(v)) for v in row] for row in matrix.double()]
    shift = [Fraction(0)] * len(rows) if bias is None else [Fraction(float(v)) for v in bias.double()]
    for x, t, radius in zip(images.double().flatten(1), labels.tolist(), radii.tolist(), strict=True):
        assert radius < float("inf")
        point = [Fraction(float(v)) for v in x]
        z = [sum((w * p for w, p in zip(row, point, strict=True)), b) for row, b in zip(rows, shift, strict=True)]
        for i, row in enumerate(rows):
            if i == t or radius == 0.0:
                continue
            square = sum(((a - b) ** 2 for a, b in zip(rows[t], row, strict=True)), Fraction(0))
            assert z[t] > z[i]
            assert Fraction(radius) ** 2 * square <= (z[t] - z[i]) ** 2
