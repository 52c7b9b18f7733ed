"""
An invertible block that preserves volume
=========================================

A normalising flow needs maps whose inverse and whose determinant are known. An orthogonal convolution has both for
nothing: the inverse is the adjoint, and ``log |det|`` is zero. It mixes all channels and pixels, which the usual
permutations do not. With additive couplings between the convolutions the block is nonlinear, and preserves volume.
"""

import math

import torch

import skewconv

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

# %%
# In training a SOC layer keeps norms nearly, which is enough for classifiers and too little here. With
# ``accurate=True`` it trains with the polynomial of evaluation.


class Block(torch.nn.Module):
    """x -> S x, then half of the channels shifted by a function of the other half."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = skewconv.nn.SOC2d(channels, channels, 3, accurate=True, eval_tol=1e-12)
        half = channels // 2
        self.shift = torch.nn.Sequential(
            torch.nn.Conv2d(half, 16, 3, padding=1), torch.nn.SiLU(), torch.nn.Conv2d(16, half, 3, padding=1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, channels, *size), the same shape."""
        a, b = self.mix(x).chunk(2, 1)
        return torch.cat([a, b + self.shift(a)], 1)

    def inverse(self, y: torch.Tensor) -> torch.Tensor:
        """The x with forward(x) = y."""
        a, b = y.chunk(2, 1)
        return self.mix.inverse(torch.cat([a, b - self.shift(a)], 1))


class Flow(torch.nn.Module):
    """Images (n, 1, 8, 8), folded to (n, 4, 4, 4), through blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.fold = skewconv.nn.InvertibleDownsample(2)
        self.blocks = torch.nn.ModuleList(Block(4) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Data to code."""
        x = self.fold(x)
        for block in self.blocks:
            x = block(x)
        return x

    def inverse(self, z: torch.Tensor) -> torch.Tensor:
        """Code to data."""
        for block in reversed(self.blocks):
            z = block.inverse(z)
        return self.fold.inverse(z)

    def log_abs_det_bound(self) -> float:
        """Proven: a convolution has n log of its gain, and a shift a triangular Jacobian with ones on its diagonal."""
        return sum(64 * max(abs(math.log(gain)) for gain in block.mix.gain_bounds()) for block in self.blocks)


# %%
# The data lie near a line in the space of images: a fixed picture times a random brightness, and a little noise. A map
# that preserves volume cannot make them a standard normal, but it can turn the direction that varies into one entry of
# the code and leave the noise to the others: likelihood rises as far as it can.

picture = torch.sin(torch.linspace(0, 6, 64)).reshape(1, 1, 8, 8)


def sample(count: int) -> torch.Tensor:
    """(count, 1, 8, 8)."""
    return torch.randn(count, 1, 1, 1) * picture + 0.1 * torch.randn(count, 1, 8, 8)


flow = Flow(3)
scale = torch.nn.Parameter(torch.zeros(4, 4, 4))
optimizer = torch.optim.Adam([*flow.parameters(), scale], lr=5e-3)
for step in range(201):
    prior = torch.distributions.Normal(0.0, scale.exp())
    # The flow's own log |det| is zero, so that this is the likelihood of the images.
    loss = -prior.log_prob(flow(sample(64))).sum((1, 2, 3)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step:3d}: negative log-likelihood {loss.item():8.2f}")

# %%
# The inverse is exact in both modes. A layer in training mode moves its filter's scale only when its parameters have
# changed, so that the inverse undoes the forward pass before it; in evaluation the scale is a proven one.

for mode in ("training", "evaluation"):
    flow.train(mode == "training")
    x = sample(4)
    error = (flow.inverse(flow(x)) - x).abs().max().item()
    print(f"in {mode} inverse(flow(x)) differs from x by {error:.1e}")
    assert error < 1e-9

# %%
# The volume is kept: the gain of a layer says how far from zero its polynomial may leave ``log |det|``. The 64 x 64
# Jacobian of the whole flow agrees.

bound = flow.log_abs_det_bound()
print(f"log |det| is zero, proven to {bound:.1e}")
jacobian = torch.autograd.functional.jacobian(lambda image: flow(image[None])[0].flatten(), x[0]).reshape(64, 64)
measured = torch.linalg.slogdet(jacobian).logabsdet.item()
print(f"from the Jacobian: {measured:+.1e}")
assert bound < 1e-6
assert abs(measured) <= bound + 1e-12

torch.set_default_dtype(torch.float32)
