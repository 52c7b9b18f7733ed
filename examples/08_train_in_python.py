"""
Train in Python
===============

``skewconv.train.fit`` does what ``skewconv train`` does: data, recipe, checkpoints, and a last evaluation whose
certified accuracies are proven. It returns the network and its record, and evaluates again when asked.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits

import skewconv
from skewconv.train import fit, recipe

# %%
# Five lines. Settings are called as the flags of the command are.

run = fit(recipe("digits", epochs=3, width=4))
results = run.record["results"]
print(f"clean {results['clean']:.1%}")
for radius, share in results["certified"].items():
    print(f"certified at l2 radius {radius}: {share:.1%}")
assert results["clean"] > 0.7

# %%
# Images in memory take the place of a name: arrays or tensors, uint8 or floats in [0, 1], of any size. These are the
# same digits with a border, 12 x 10 pixels: the first stage halves them to 6 x 5, and the last folds what is left.

digits = load_digits()
images = np.pad(np.rint(digits.images * 255 / 16).astype(np.uint8), ((0, 0), (2, 2), (1, 1)))
train, test = (images[:1400], digits.target[:1400]), (images[1400:], digits.target[1400:])
run = fit(recipe("digits", epochs=3, width=4, augment=False), (train, test))
print(f"{run.input_shape}: clean {run.record['results']['clean']:.1%}")
assert run.record["results"]["clean"] > 0.6

# %%
# The network is in eval mode and ready for everything else: predictions, certificates, freezing.

few = torch.from_numpy(test[0][:5])[:, None].float() / 255
found = skewconv.predict(run.model, few)
for label, radius in zip(found.classes.tolist(), found.radii.tolist(), strict=True):
    print(f"class {label}: in float64 no change shorter than {radius:.3f} in l2 alters that")
