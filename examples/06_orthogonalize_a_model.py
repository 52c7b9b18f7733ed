"""
Orthogonalising an existing model
=================================

A loop over the modules of a model replaces its convolutions and linear maps with orthogonal ones of the same shape.
The new layers start from random weights: this changes an architecture, not a trained network.
"""

import copy

import torch
from torch import nn

import skewconv

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 32, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 10),
)
print(f"before: Lipschitz bound {skewconv.nn.lipschitz_upper_bound(model, (1, 8, 8)):.2f}")

# %%
# The arguments are those of PyTorch's layers. A convolution without padding changes the size of the image, which no
# orthogonal map does: the new layer refuses it, and padding mends the architecture.


def orthogonal_layer(layer: nn.Module) -> nn.Module | None:
    """An orthogonal layer in the place of one of PyTorch's; None for all others."""
    if isinstance(layer, nn.Conv2d):
        options = {"dilation": layer.dilation, "groups": layer.groups, "bias": layer.bias is not None}
        options |= {"padding": layer.padding, "padding_mode": layer.padding_mode}
        return skewconv.nn.SOC2d(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, **options)
    if isinstance(layer, nn.Linear):
        return skewconv.nn.OrthogonalLinear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    return None


orthogonal = copy.deepcopy(model)
for name, layer in model.named_modules():
    if (new := orthogonal_layer(layer)) is not None:
        parent, _, child = name.rpartition(".")
        setattr(orthogonal.get_submodule(parent), child, new)
print(f"after: Lipschitz bound {skewconv.nn.lipschitz_upper_bound(orthogonal, (1, 8, 8)):.7f}")

# %%
# ReLU is 1-Lipschitz, but throws away half of every gradient. ``MaxMin`` does not, and in certified networks it is the
# better choice. It is a module like any other, so that replacing it is up to you.

for index, layer in enumerate(orthogonal):
    if isinstance(layer, nn.ReLU):
        orthogonal[index] = skewconv.nn.MaxMin()

# %%
# It trains as before, and every prediction comes with a certified radius in the units of the input.

from sklearn.datasets import load_digits  # noqa: E402

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
train, test = slice(0, 1500), slice(1500, None)

optimizer = torch.optim.Adam(orthogonal.parameters(), lr=5e-3)
orthogonal.train()
for _ in range(8):
    for batch in torch.randperm(1500).split(100):
        # The factor asks for larger margins: a 1-Lipschitz network cannot make its logits large by itself.
        loss = nn.functional.cross_entropy(8 * orthogonal(images[train][batch]), labels[train][batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

orthogonal.eval()
radii = skewconv.certify.radii(orthogonal, images[test], labels[test])
print(f"clean accuracy {(radii > 0).double().mean():.1%}")
print(f"certified accuracy at an l2 radius of 0.25: {(radii >= 0.25).double().mean():.1%}")
assert (radii > 0).double().mean() > 0.85
assert (radii >= 0.25).double().mean() > 0.5
