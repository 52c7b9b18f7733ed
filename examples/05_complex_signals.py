"""
Unitary convolution of complex signals
======================================

Radio, optics and MRI speak complex numbers, and much of what happens to their signals on the way preserves energy:
phases are turned, nothing is lost. ``SUC1d``, ``SUC2d`` and ``SUC3d`` are convolutions of complex signals that are
unitary by construction. Here one learns to undo a channel that smears symbols over their neighbours.
"""

import torch

import skewconv

torch.manual_seed(0)
LENGTH = 64

# %%
# The symbols are the four corners of a square, and the channel turns the phase of each frequency by another angle.

frequencies = 2 * torch.pi * torch.arange(LENGTH) / LENGTH
phase = 1.3 * torch.sin(frequencies) + 0.9 * torch.cos(2 * frequencies)


def symbols(count: int) -> torch.Tensor:
    """(count, 1, LENGTH), of absolute value one."""
    corners = torch.randint(0, 4, (count, 1, LENGTH))
    return torch.polar(torch.ones(corners.shape), torch.pi / 2 * corners + torch.pi / 4)


def channel(sent: torch.Tensor) -> torch.Tensor:
    """What arrives, with a little noise."""
    smeared = torch.fft.ifft(torch.fft.fft(sent) * torch.exp(1j * phase))
    return smeared + 0.05 * torch.randn_like(sent)


def wrong(received: torch.Tensor, sent: torch.Tensor) -> float:
    """The share of symbols in another corner than the one sent."""
    same = (received.real.sign() == sent.real.sign()) & (received.imag.sign() == sent.imag.sign())
    return 1 - same.double().mean().item()


sent = symbols(500)
print(f"as received, {wrong(channel(sent), sent):.1%} of the symbols are wrong")

# %%
# Two unitary layers with circular padding. A unitary equaliser cannot amplify noise, whatever it learns.

equaliser = torch.nn.Sequential(
    skewconv.nn.SUC1d(1, 1, 5, bias=False, padding_mode="circular"),
    skewconv.nn.SUC1d(1, 1, 5, bias=False, padding_mode="circular"),
)
optimizer = torch.optim.Adam(equaliser.parameters(), lr=0.02)
for step in range(301):
    sent = symbols(64)
    loss = (equaliser(channel(sent)) - sent).abs().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step:3d}: mean squared error {loss.item():.4f}")

# %%
# After training: the symbols are right, and energy is preserved as proven.

equaliser.eval()
sent = symbols(500)
received = channel(sent)
with torch.no_grad():
    restored = equaliser(received)
ratio = (restored.norm() / received.norm()).item()
print(f"after the equaliser, {wrong(restored, sent):.2%} are wrong")
low, high = equaliser[0].gain_bounds()
print(f"energy out / energy in = {ratio**2:.5f}; proven of each layer: gains in [{low:.7f}, {high:.7f}]")
assert wrong(restored, sent) < 0.001
assert abs(ratio - 1) < 1e-5
