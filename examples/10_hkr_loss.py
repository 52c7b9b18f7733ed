r"""
The HKR loss: a classifier that measures a distance
===================================================

A 1-Lipschitz network whose loss is a hinge minus the difference of its means over two classes (Serrurier et al., 2021),

.. math:: \alpha \, E \max(0, m - y f(x)) - (E_Q f - E_P f),

is a classifier and a critic at once: the second term is the dual form of the Wasserstein-1 distance, which no
1-Lipschitz function exceeds, and the hinge asks for a margin. ``skewconv.train.hkr_loss`` is this loss.

Here all is known. P and Q are the uniform distributions on two spheres around the origin, of radius 1 and 3. The best
plan moves every point straight outwards, so the distance is 2, and :math:`f(x) = \|x\| - 2` attains it. Its zeros are
the best boundary: every point is at the distance 1 from it. No linear function tells P from Q, for their means agree.
"""

import torch

import skewconv
from skewconv import nn
from skewconv.train import hkr_loss

STEPS, NEAR, FAR = 400, 1.0, 3.0


def sample(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of both spheres as images (2 count, 1, 4, 4), and the number of their sphere."""
    points = torch.nn.functional.normalize(torch.randn(2 * count, 16), dim=1)
    labels = torch.arange(2 * count) // count
    return (points * torch.where(labels == 1, FAR, NEAR)[:, None]).reshape(-1, 1, 4, 4), labels


# %%
# Two networks of one shape, with the same activations, optimizer, rate, steps and samples. The layers of one are
# orthogonal. Those of the other are PyTorch's own, each divided by a proven bound of its norm: 1-Lipschitz as well, but
# free to shrink what they do not need, and with it the gradient. Over three seeds the orthogonal one reaches 1.76 to
# 1.82 at a rate of 0.01, 1.89 to 1.90 at 0.03 and 1.81 to 1.85 at 0.1; the other 0.58 to 0.62, 0.53 to 0.54 and 0.38 to
# 0.59.


def orthogonal() -> torch.nn.Module:
    """SOC layers."""
    layers = [nn.SOC2d(1, 16, 3), nn.SOC2d(16, 32, 3, stride=2)]
    linear = [nn.OrthogonalLinear(128, 64), nn.OrthogonalLinear(64, 32), nn.OrthogonalLinear(32, 1)]
    return chain(layers, linear)


def normalised() -> torch.nn.Module:
    """Layers of PyTorch, divided by their norms."""
    layers = [torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.Conv2d(16, 32, 3, stride=2, padding=1)]
    linear = [torch.nn.Linear(128, 64), torch.nn.Linear(64, 32), torch.nn.Linear(32, 1)]
    return chain([nn.proven_norm(each) for each in layers], [nn.proven_norm(each) for each in linear])


def chain(layers: list[torch.nn.Module], linear: list[torch.nn.Module]) -> torch.nn.Module:
    """Layers with MaxMin after each but the last."""
    parts = [part for layer in layers for part in (layer, nn.MaxMin())] + [torch.nn.Flatten()]
    return torch.nn.Sequential(*parts, *(part for layer in linear for part in (layer, nn.MaxMin())))[:-1]


def train(network: torch.nn.Module) -> torch.nn.Module:
    """Train by the HKR loss, with fresh points in every step."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        points, labels = sample(128)
        loss = hkr_loss(network(points), labels, alpha=10.0, margin=1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network.eval()


# %%
# Evaluated on points they have not seen. The certified radius of a point is the size of its score divided by the proven
# Lipschitz bound: no nearer point has another class. The true distance to the best boundary is 1 for every point.

found = {}
print(f"{'':12}{'difference of means':>20}{'accuracy':>10}{'certified radius':>18}{'Lipschitz bound':>17}")
for name, build in (("orthogonal", orthogonal), ("normalised", normalised)):
    torch.manual_seed(0)
    network = train(build())
    bound = skewconv.nn.lipschitz_upper_bound(network, (1, 4, 4))
    points, labels = sample(5000)
    with torch.no_grad():
        scores = network(points)[:, 0]
    right = (scores > 0) == (labels == 1)
    radius = (scores.abs() * right / bound).mean().item()
    found[name] = (scores[labels == 1].mean() - scores[labels == 0].mean()).item()
    print(f"{name:12}{found[name]:20.4f}{right.float().mean():10.2%}{radius:18.4f}{bound:17.7f}")
    assert bound <= 1 + 1e-6
print(f"{'exact':12}{FAR - NEAR:20.4f}{1:10.2%}{1:18.4f}")
assert found["normalised"] < found["orthogonal"] < FAR - NEAR
assert found["orthogonal"] > 0.85 * (FAR - NEAR)

# %%
# The same on equal terms against another library. ``benchmarks/bench_wasserstein.py`` trains critics of this library
# and of deel-torchlip with the same widths, sorts, loss (without the hinge), optimizer, steps, batches and seeds, each
# at three rates of which the best on training points counts. Each estimate is divided by a proven Lipschitz bound of
# its network. That of deel-torchlip's 3 x 3 convolutions is well below the 1 that they promise, so that this raises
# what they find; the last column has it undivided. All distances are 2, and no estimate can exceed them. The pairs are
# the spheres from above; 8 x 8 digits, against the same digits moved by a fixed image; and digits parted by that image,
# which is added on one side of a hyperplane and subtracted on the other. The networks have 3 x 3 convolutions, or
# convolutions on patches that do not overlap, or, dense, the layers that deel-torchlip's own pages take for this task.
#
# .. <!-- wasserstein -->
#
# Of 9 comparisons, every seed of skewconv comes nearer than any of deel-torchlip 1.0.5 in 4 (spheres: 3 x 3; digits,
# moved: 3 x 3; digits, parted: 3 x 3; digits, parted: dense), and the other way round in 0; in 5 (spheres: patches;
# spheres: dense; digits, moved: patches; digits, moved: dense; digits, parted: patches) the seeds overlap. All make
# equally many steps, which is not equal time: one of ours takes 1.9 to 3.2 times the processor time of theirs, and
# longer training may close a small gap. Of their 81 runs 4 diverged, at a rate of 0.03.
#
# ===============  ========  ===================  ===================  ===================
# pair             network   skewconv             deel-torchlip        the same, undivided
# ===============  ========  ===================  ===================  ===================
# spheres          3 x 3     1.9164 to 1.9172     1.3822 to 1.3928     0.9214 to 0.9285
# spheres          patches   1.9463 to 1.9558     1.9451 to 1.9515     1.9451 to 1.9515
# spheres          dense     1.9966 to 1.9969     1.9967 to 1.9971     1.9967 to 1.9971
# digits, moved    3 x 3     1.9988 to 1.9995     1.9825 to 1.9852     1.3045 to 1.3055
# digits, moved    patches   1.9992 to 1.9996     1.9991 to 1.9996     1.9991 to 1.9996
# digits, moved    dense     1.9988 to 1.9993     1.9986 to 1.9993     1.9986 to 1.9993
# digits, parted   3 x 3     1.9938 to 1.9971     1.9799 to 1.9822     1.3095 to 1.3124
# digits, parted   patches   1.9989 to 1.9989     1.9987 to 1.9991     1.9987 to 1.9991
# digits, parted   dense     1.9983 to 1.9988     1.9775 to 1.9907     1.9775 to 1.9907
# ===============  ========  ===================  ===================  ===================
#
# .. <!-- end -->
