"""
A certified classifier on your own folder of images
===================================================

From a folder of pictures to a network whose every prediction comes with a certified radius: two commands. The pictures
here are drawn by the script, discs, rings and crosses of random size and place; yours go in their place.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

workplace = tempfile.TemporaryDirectory()
folder = Path(workplace.name)

# %%
# One folder a class; the names of the folders are the names of the classes.

rng = np.random.default_rng(0)
rows, columns = np.mgrid[0:16, 0:16]
SHAPES = {
    "disc": lambda i, j, size: i**2 + j**2 <= size**2,
    "ring": lambda i, j, size: (i**2 + j**2 <= size**2) & (i**2 + j**2 >= (size - 2.5) ** 2),
    "cross": lambda i, j, size: (abs(i) <= size) & (abs(j) <= size) & ((abs(i) <= 1) | (abs(j) <= 1)),
}
for name, inside in SHAPES.items():
    (folder / "pictures" / name).mkdir(parents=True)
    for number in range(150):
        i, j = rows - rng.uniform(6, 9), columns - rng.uniform(6, 9)
        drawn = 200 * inside(i, j, rng.uniform(5, 6)) + rng.uniform(0, 40, (16, 16))
        Image.fromarray(drawn.astype(np.uint8)).save(folder / "pictures" / name / f"{number:03d}.png")


# %%
# The commands are those of a terminal; the script only shows what they print.


def skewconv(*words: str) -> None:
    """Run a command and show it with its output."""
    print("$ skewconv " + " ".join(words))
    done = subprocess.run(
        [sys.executable, "-m", "skewconv", *words], cwd=folder, check=True, capture_output=True, text=True
    )
    print(done.stdout.replace(f"{sys.executable} -m ", ""))


skewconv("train", "--data", "folder:pictures", "--epochs", "8", "--batch-size", "30", "--out", "run", "--quiet")

# %%
# *Clean* accuracy counts the test pictures that are classified rightly; *certified* accuracy at a radius counts those
# for which, on top of that, no change shorter than the radius can alter the answer.
#
# The same for one picture: its class, and its certified radius, proven for the network in float64. A picture of
# another size is refused, or resized with ``--resize``.

skewconv("predict", "run", "pictures/disc/000.png", "pictures/cross/000.png")

# %%
# In Python it is one line.

import torch  # noqa: E402

import skewconv as library  # noqa: E402

model = library.load(folder / "run")
picture = np.asarray(Image.open(folder / "pictures" / "ring" / "000.png"))
images = torch.tensor(picture, dtype=torch.float32)[None, None] / 255
found = library.predict(model, images)
print(f"class {sorted(SHAPES)[found.classes[0]]}, certified radius {found.radii[0]:.3f}")
assert sorted(SHAPES)[found.classes[0]] == "ring"
assert found.radii[0] > 0.1

workplace.cleanup()
