"""Losses are those of their formulas; attacks are as strong as can be against linear models, in ball and image."""

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import wasserstein_distance
from torch import Generator, Tensor, nn

from skewconv.config import RegimeConfig
from skewconv.train.step import hkr_loss, loss_of, pgd_survivors

LOGITS = torch.tensor([[2.0, 0.5, -1.0], [0.0, 1.0, 3.0], [1.0, 1.0, 0.0]])
LABELS = torch.tensor([0, 1, 0])


def test_cross_entropy_with_a_temperature_that_keeps_the_size_of_gradients_and_an_offset():
    lowered = LOGITS - 0.7 * F.one_hot(LABELS, 3)
    for config, expected in (
        (RegimeConfig(), F.cross_entropy(LOGITS, LABELS)),
        (RegimeConfig(logit_scale=4.0), F.cross_entropy(4 * LOGITS, LABELS) / 4),
        (RegimeConfig(offset=0.7), F.cross_entropy(lowered, LABELS)),
    ):
        torch.testing.assert_close(loss_of(LOGITS, LABELS, config), expected)


def test_the_hkr_loss_and_its_gradient_are_those_of_the_formula():
    scores = torch.tensor([2.5, 0.5, -0.25, -3.0], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, 1, 0, 0])
    loss = hkr_loss(scores, labels, alpha=4.0, margin=1.0)
    # Means 1.5 and -1.625; hinges 0, 0.5, 0.75, 0.
    assert loss.item() == pytest.approx(4 * 1.25 / 4 - (1.5 + 1.625))
    (gradient,) = torch.autograd.grad(loss, scores)
    # The difference of means pulls apart by 1/2 each, and the hinge of the two inner ones by alpha / N = 1.
    torch.testing.assert_close(gradient, torch.tensor([-0.5, -0.5 - 1, 0.5 + 1, 0.5], dtype=torch.float64))
    torch.testing.assert_close(hkr_loss(scores[:, None], labels, alpha=4.0, margin=1.0), loss)
    assert torch.autograd.gradcheck(lambda x: hkr_loss(x, labels, alpha=3.0, margin=0.7), scores)


def test_the_hkr_loss_of_several_classes_is_the_mean_of_each_against_the_rest():
    each = [hkr_loss(LOGITS[:, k], (k == LABELS).long(), alpha=2.0) for k in range(3)]
    torch.testing.assert_close(hkr_loss(LOGITS, LABELS, alpha=2.0), torch.stack(each).mean())
    # No image is of class 2: its part is the hinge, and the mean of the others, which are outside.
    assert each[2].item() == pytest.approx(2 * (0 + 4 + 1) / 3 + (-1 + 3 + 0) / 3)


def test_the_dual_term_is_the_wasserstein_distance_of_points_on_a_line():
    one, two = torch.randn(2, 500, generator=Generator().manual_seed(0), dtype=torch.float64)
    points, labels = torch.cat([one, two + 4]), torch.arange(1000) // 500
    # Moved to the right by 4, f(x) = x is the best of all 1-Lipschitz functions, up to the few that cross.
    found = -hkr_loss(points, labels, alpha=0.0).item()
    assert found == pytest.approx(wasserstein_distance(one, two + 4), rel=1e-3)


EPSILON = 8 / 255


class Linear(nn.Module):
    """Two logits whose difference is affine: the worst perturbation is known."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 4, 4, generator=Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        score = ((x - 0.5) * self.weight).sum((1, 2, 3))
        return torch.stack([-score, score], 1) / 2


def sample(count: int = 64) -> tuple[Tensor, Tensor]:
    generator = Generator().manual_seed(1)
    # Far enough from 0 and 1 for the ball to lie inside the image.
    images = 0.3 + 0.4 * torch.rand(count, 1, 4, 4, generator=generator)
    return images, torch.randint(0, 2, (count,), generator=generator)


def test_many_steps_find_exactly_the_images_that_can_fall():
    model, (images, labels) = Linear(), sample()
    logits = model(images)
    right, wrong = logits[torch.arange(len(labels)), labels], logits[torch.arange(len(labels)), 1 - labels]
    # The margin falls by epsilon times the l1 norm of its gradient, and by no more.
    robust = right - wrong > EPSILON * float(model.weight.detach().abs().sum())
    assert 0 < int(robust.sum()) < int((right > wrong).sum())
    regime = RegimeConfig("adversarial", epsilon=EPSILON, pgd_step=2 / 255, pgd_steps=20, pgd_restarts=2)
    survivors = pgd_survivors(model, images, labels, regime, Generator().manual_seed(0))
    assert torch.equal(survivors, robust)  # yes or no an image; no margin is within rounding of its threshold
