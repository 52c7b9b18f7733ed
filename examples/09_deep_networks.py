"""
Deep networks in training
=========================

A layer applies a polynomial in place of the exponential. In evaluation they agree to 1e-6. In training the polynomial
is shorter, and its effect on norms grows with depth: where each layer shrinks a signal by 4%, 100 layers leave 2% of
it, and as little of the gradient.
"""

import matplotlib.pyplot as plt
import torch

import skewconv

DEPTH = 100
OPTIONS = {
    "default": {},
    "Chebyshev, degree 3": {"train_series": "chebyshev", "train_degree": 3, "norm": "bound"},
    "Taylor, degree 5 (the paper)": {"series": "taylor", "train_degree": 5},
}


def norms(layers: torch.nn.Sequential, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Norms of signal and gradient after 0 ... DEPTH layers, relative to the first, (DEPTH + 1,) each."""
    signals = [x.clone().requires_grad_()]
    for layer in layers:
        signals.append(layer(signals[-1]))
        signals[-1].retain_grad()
    signals[-1].backward(torch.randn_like(x))
    forward = torch.stack([signal.detach().norm() for signal in signals])
    backward = torch.stack([signal.grad.norm() for signal in reversed(signals)])
    return forward / forward[0], backward / backward[0]


# %%
# Few eigenvalues of a filter lie far out. Chebyshev's polynomial spreads its error evenly over the whole interval. The
# default is made for the spectrum that filters have: its absolute value is near one there, at about the same cost.

x = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(1))
figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
networks, kept = {}, {}
for name, options in OPTIONS.items():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(skewconv.nn.SOC2d(8, 8, 3, bias=False, **options) for _ in range(DEPTH)))
    found = norms(layers, x)
    for axis, values in zip(axes, found, strict=True):
        axis.semilogy(values, label=name)
    networks[name], kept[name] = layers, [values[-1].item() for values in found]
    products = sum(layer.polynomial(training=True).degree for layer in layers) / DEPTH
    print(f"{name}: {products:.1f} products a layer, signal {kept[name][0]:.3f}, gradient {kept[name][1]:.3f}")
for axis, title in zip(axes, ("signal", "gradient"), strict=True):
    axis.set(title=f"norm of the {title}", xlabel="layers")
axes[0].legend()
figure.tight_layout()

assert all(abs(value - 1) < 0.1 for value in kept["default"])
assert max(kept["Chebyshev, degree 3"]) < 0.1

# %%
# Evaluation computes nearly the same function, after as many layers too.

layers = networks["default"]
with torch.no_grad():
    trained, evaluated = layers(x), layers.eval()(x)
distance = ((trained - evaluated).norm() / evaluated.norm()).item()
print(f"after {DEPTH} layers training and evaluation differ by {distance:.3f} of the norm")
assert distance < 0.35
