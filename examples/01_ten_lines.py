"""
An orthogonal convolution in ten lines
======================================

A convolution is a matrix. Training pulls its singular values apart; an orthogonal convolution keeps all of them at one,
so that it neither stretches nor shrinks anything, whatever its weights are.
"""

import torch

import skewconv

torch.manual_seed(0)
layer = skewconv.nn.SOC2d(8, 8, kernel_size=3).eval()
x = torch.randn(4, 8, 8, 8)
y = layer(x)

# %%
# It drops in for ``nn.Conv2d``: the same arguments, the same shapes. What it adds is *proven* of its weights, for every
# input and every image size: no input is stretched, none is shrunk by more than two millionths.

low, high = layer.gain_bounds()
print("shape  ", tuple(y.shape))
print(f"proven  every gain lies in [{low:.7f}, {high:.7f}]")
assert 1 - 2e-6 <= low <= high <= 1

# %%
# Two images keep their distance, and the layer can be undone.

print(f"distance before {(x[0] - x[1]).norm():.4f}, after {(y[0] - y[1]).norm():.4f}")
print(f"inverse(layer(x)) differs from x by {(layer.inverse(y) - x).abs().max():.1e}")
assert (layer.inverse(y) - x).abs().max() < 1e-4

# %%
# Here are all singular values of the layer's matrix on a 8 x 8 image, beside those of a plain convolution as PyTorch
# draws it. The values of the orthogonal layer sit on one; no training step can move them away.

import matplotlib.pyplot as plt  # noqa: E402


def singular_values(module: torch.nn.Module) -> torch.Tensor:
    """Of the linear part of a module, on 8 x 8 x 8 inputs, largest first."""
    bias = module(torch.zeros(1, 8, 8, 8))
    matrix = skewconv.ops.dense_matrix(lambda image: module(image) - bias, (8, 8, 8), dtype=torch.float32)
    return torch.linalg.svdvals(matrix.detach())


plain = torch.nn.Conv2d(8, 8, kernel_size=3, padding=1)
figure, axes = plt.subplots(figsize=(6, 3))
values, plain_values = singular_values(layer), singular_values(plain)
axes.plot(plain_values, label="nn.Conv2d")
axes.plot(values, label="SOC2d")
axes.set(xlabel="index", ylabel="singular value", ylim=(0, None))
axes.legend()
figure.tight_layout()

print(f"SOC2d      smallest {values.min():.6f}, largest {values.max():.6f}")
print(f"nn.Conv2d  smallest {plain_values.min():.6f}, largest {plain_values.max():.6f}")
assert (values - 1).abs().max() < 1e-4
