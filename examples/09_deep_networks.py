"""
Deep networks in training
=========================

A layer applies a polynomial in place of the exponential. In evaluation they agree to 1e-6. In training the polynomial
is shorter, and its effect on norms grows with depth: where each layer shrinks a signal by 4%, 100 layers leave 2% of
it, and as little of the gradient.
"""

import copy

import matplotlib.pyplot as plt
import torch

import skewconv

DEPTH = 100
OPTIONS = {
    "default": {},
    "Chebyshev, degree 3": {"train_series": "chebyshev", "train_degree": 3, "norm": "bound"},
    "Taylor, degree 5 (the paper)": {"series": "taylor", "train_degree": 5},
}


def curves(layers: torch.nn.Sequential, x: torch.Tensor) -> list[torch.Tensor]:
    """Signal, gradient, and distance from evaluation after 0 ... DEPTH layers in training mode, (DEPTH + 1,) each.

    Norms are relative to the first, distances to the norm of the signal in evaluation.
    """
    signals = [x.clone().requires_grad_()]
    for layer in layers:
        signals.append(layer(signals[-1]))
        signals[-1].retain_grad()
    signals[-1].backward(torch.randn_like(x))
    evaluated = [x]
    with torch.no_grad():
        for layer in copy.deepcopy(layers).eval():
            evaluated.append(layer(evaluated[-1]))
    forward = torch.stack([signal.detach().norm() for signal in signals])
    backward = torch.stack([signal.grad.norm() for signal in reversed(signals)])
    distance = [(one.detach() - two).norm() / two.norm() for one, two in zip(signals, evaluated, strict=True)]
    return [forward / forward[0], backward / backward[0], torch.stack(distance)]


# %%
# Few eigenvalues of a filter lie far out. Chebyshev's polynomial spreads its error evenly over the whole interval. The
# default is made for the spectrum that filters have: its absolute value is near one there, at about the same cost.
# The third plot shows that evaluation then computes nearly the same function, after 100 layers too.

x = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(1))
figure, axes = plt.subplots(1, 3, figsize=(11, 3))
last = {}
for name, options in OPTIONS.items():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(skewconv.nn.SOC2d(8, 8, 3, bias=False, **options) for _ in range(DEPTH)))
    found = curves(layers, x)
    for axis, values in zip(axes, found, strict=True):
        axis.plot(values, "--" if "Taylor" in name else "-", label=name)
    last[name] = signal, gradient, distance = [values[-1].item() for values in found]
    products = sum(layer.polynomial(training=True).degree for layer in layers) / DEPTH
    print(f"{name}: {products:.1f} products a layer")
    print(f"  after {DEPTH} layers: signal {signal:.3f}, gradient {gradient:.3f}, from evaluation {distance:.3f}")
for axis, title in zip(axes, ("norm of the signal", "norm of the gradient", "distance from evaluation"), strict=True):
    axis.set(title=title, xlabel="layers, in training mode")
for axis in axes[:2]:
    axis.set_yscale("log")
    axis.set_ylim(0.005, 2)
axes[1].legend(loc="lower left", fontsize="small")
figure.tight_layout()

assert all(abs(value - 1) < 0.1 for value in last["default"][:2])
assert last["default"][2] < 0.35
assert max(last["Chebyshev, degree 3"][:2]) < 0.1
assert last["Chebyshev, degree 3"][2] > 0.9
