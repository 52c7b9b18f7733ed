r"""
A critic that recovers the Wasserstein-1 distance
=================================================

By Kantorovich and Rubinstein, the Wasserstein-1 distance of two distributions is the largest difference of means,

.. math:: W_1(P, Q) = \max_f \; E_Q f - E_P f \quad \text{over all 1-Lipschitz } f.

A network made of orthogonal layers is 1-Lipschitz by construction, so there is nothing to clip and no penalty to weigh:
train it to make the difference large. In evaluation mode its bound is proven, and whatever difference fresh samples
show, up to their own noise, is a *lower bound* of the distance.

Here the distance is known. P is white noise on 8 x 8 images. Q is the same noise with a fixed pattern added or
subtracted, each half of the time. Across the pattern both are alike, so that the distance is that of two distributions
on a line: the normal law, and the half-and-half mixture of its two shifts.
"""

import torch
from scipy import integrate, stats

import skewconv
from skewconv import nn

torch.manual_seed(0)
AMPLITUDE = 3.0

rows, columns = torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij")
pattern = torch.exp(-3 * (rows**2 + columns**2))
pattern = pattern / pattern.norm()


def sample_p(count: int) -> torch.Tensor:
    """Noise."""
    return torch.randn(count, 1, 8, 8)


def sample_q(count: int) -> torch.Tensor:
    """Noise with the pattern added or subtracted."""
    signs = torch.randint(0, 2, (count, 1, 1, 1)) * 2.0 - 1
    return torch.randn(count, 1, 8, 8) + AMPLITUDE * signs * pattern


def gap_of_distribution_functions(t: float) -> float:
    """|F_P(t) - F_Q(t)| along the pattern; its integral is the distance."""
    mixture = (stats.norm.cdf(t - AMPLITUDE) + stats.norm.cdf(t + AMPLITUDE)) / 2
    return float(abs(stats.norm.cdf(t) - mixture))


exact = 2 * integrate.quad(gap_of_distribution_functions, 0, 12)[0]
print(f"the distance: {exact:.4f}")

# %%
# The critic: orthogonal convolutions with a stride that folds the image into channels, MaxMin between them, and one
# number at the end. No linear critic can tell P from Q, for their means are equal.

critic = torch.nn.Sequential(
    nn.SOC2d(1, 16, 3, stride=2),
    nn.MaxMin(),
    nn.SOC2d(16, 64, 3, stride=2),
    nn.MaxMin(),
    torch.nn.Flatten(),
    nn.OrthogonalLinear(256, 64),
    nn.MaxMin(),
    nn.OrthogonalLinear(64, 1),
)
optimizer = torch.optim.Adam(critic.parameters(), lr=0.03)
STEPS = 250
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for step in range(STEPS):
    difference = critic(sample_q(192)).mean() - critic(sample_p(192)).mean()
    optimizer.zero_grad()
    (-difference).backward()
    optimizer.step()
    schedule.step()
    if step % 50 == 49:
        print(f"step {step + 1}: difference of means {difference.item():.4f}")

# %%
# Evaluated on samples that the critic has not seen.

critic.eval()
bound = skewconv.nn.lipschitz_upper_bound(critic, (1, 8, 8))
with torch.no_grad():
    on_q, on_p = critic(sample_q(20_000)), critic(sample_p(20_000))
found = (on_q.mean() - on_p.mean()).item()
noise = ((on_q.var() + on_p.var()) / 20_000).sqrt().item()
print(f"proven Lipschitz bound of the critic: {bound:.7f}")
print(f"difference of means on fresh samples: {found:.4f} +- {noise:.4f}")
print(f"the distance:                         {exact:.4f}   ({found / exact - 1:+.1%})")
assert bound <= 1
assert abs(found / exact - 1) < 0.05
