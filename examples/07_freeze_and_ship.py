"""
Certify a frozen model, and ship one file
=========================================

A trained network recomputes much that depends on its weights alone. ``skewconv.freeze`` computes it once, and proves
the gain of *what is stored*, so that the frozen model has certificates of its own. ``save_frozen`` writes it as one
safetensors file: nothing in it is executed when it is read. ``skewconv.export`` writes it for runtimes that have never
heard of this library, with the certified radius as an output.
"""

import json
import tempfile
from pathlib import Path

import onnxruntime
import torch
from sklearn.datasets import load_digits

import skewconv
from skewconv.frozen import load_frozen, save_frozen

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)

# %%
# A small LipConvnet on handwritten digits, trained in a plain loop.

model = skewconv.models.LipConvnet(5, in_channels=1, input_size=8, width=16, mean=0.3, std=0.4)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(6):
    for batch in torch.randperm(1400).split(100):
        loss = torch.nn.functional.cross_entropy(4 * model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
model.eval()

# %%
# Freeze it for its image size. The tolerance is what the logits may differ by in exact arithmetic, relative to the size
# of the activations; the bound is proven for the frozen operators themselves.

test, targets = images[1400:], labels[1400:]
frozen = skewconv.freeze(model, (1, 8, 8), tol=1e-6)
with torch.no_grad():
    before, after = model(test), frozen(test)
difference = (after - before).abs().max().item()
print(f"largest difference of the logits: {difference:.1e}")
print(f"proven Lipschitz bound: {skewconv.nn.lipschitz_upper_bound(model, (1, 8, 8)):.5f} before, ", end="")
print(f"{skewconv.nn.lipschitz_upper_bound(frozen, (1, 8, 8)):.5f} frozen")
assert difference < 1e-4

# %%
# The frozen model is another function, if only just, so it gets certificates of its own.

radii = [skewconv.certify.radii(each, test, targets) for each in (model, frozen)]
for radius in (0.0, 0.1, 0.2, 0.4):
    shares = [(each > radius).double().mean().item() for each in radii]
    print(f"right, and certified beyond {radius:.1f}: {shares[0]:6.1%} before, {shares[1]:6.1%} frozen")
assert (radii[1] > 0).double().mean() > 0.85

# %%
# One file, written atomically, read back in another program with ``load_frozen``.

with tempfile.TemporaryDirectory() as folder:
    path = save_frozen(frozen, Path(folder) / "digits.safetensors")
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")
    again = load_frozen(path)
with torch.no_grad():
    assert torch.equal(again(test), frozen(test))
print("read back: the same logits, bit for bit")

# %%
# Where there is no PyTorch, an ONNX file does: standard operators, any batch size, and two outputs, the logits and the
# certified radius of the predicted class. Before it is put in place onnxruntime runs it on the test images: the same
# classes, logits within the tolerance, no radius above what is proven for the float32 numbers of the file.
# ``skewconv export RUN --out digits.onnx`` does the same for a run.

names = [str(digit) for digit in range(10)]
with tempfile.TemporaryDirectory() as folder:
    made = skewconv.export.onnx(model, Path(folder) / "digits.onnx", (1, 8, 8), names, images=test)
    print(f"{made.files[0].name}: {made.files[0].stat().st_size / 1e6:.2f} MB, of layers that became")
    for row in made.rows:
        print(f"  {row.layer:10} {row.form:20} {row.multiply_adds:>8,} multiply-adds")
    session = onnxruntime.InferenceSession(made.files[0], providers=["CPUExecutionProvider"])

# %%
# From here on only onnxruntime is at work. Its radii are a little shorter than the proven ones: by the slack for
# float32.

logits, shipped = session.run(["logits", "radius"], {"images": test.numpy()})
labels_of_file = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
for scores, radius in zip(logits[:3], shipped[:3], strict=True):
    print(f"class {labels_of_file[scores.argmax()]}: no change shorter than {radius:.3f} can alter this")
right = torch.from_numpy(logits).argmax(1) == targets
proven = skewconv.certify.radii(made.frozen, test, targets)
assert (torch.from_numpy(shipped).double()[right] <= proven[right]).all()
assert (torch.from_numpy(shipped).double()[right] > 0.99 * proven[right] - 1e-4).all()
