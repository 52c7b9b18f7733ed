"""Small trained-looking networks, and a process that knows nothing of this library."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

# What a product's own process does: no skewconv there, whatever is installed.
_STRANGER = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "skewconv":
            raise ModuleNotFoundError("skewconv is hidden")

sys.meta_path.insert(0, Hidden())
import numpy as np

images = np.load(sys.argv[1])
kind, path = sys.argv[3], sys.argv[4]
if kind == "onnx":
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {"images": images})
else:
    import runpy

    import torch

    network = torch.export.load(path).module() if kind == "torch-export" else runpy.run_path(path)["load"]()
    with torch.no_grad():
        found = network(torch.from_numpy(images))
    found = [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]
try:
    import skewconv
except ModuleNotFoundError:
    np.savez(sys.argv[2], *found)
"""


@pytest.fixture(scope="session")
def run_as_stranger(tmp_path_factory):
    """(kind, path, images) -> what the file gives in a fresh process that cannot import skewconv."""
    folder = tmp_path_factory.mktemp("stranger")

    def run(kind, path, images):
        import numpy as np

        np.save(folder / "images.npy", images.numpy())
        command = [sys.executable, "-c", _STRANGER, str(folder / "images.npy"), str(folder / "found.npz"), kind]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [*command, str(path)], capture_output=True, text=True, check=False, env=environment, cwd=folder
        )
        assert done.returncode == 0, done.stderr[-2000:]
        with np.load(folder / "found.npz") as found:
            return [torch.from_numpy(found[name]) for name in found.files]

    return run


@pytest.fixture(scope="session")
def files_for_pytorch(tmp_path_factory):
    """One network, exported once for each target that PyTorch reads: kind -> the files, the one to open last."""
    from skewconv.export import TARGETS, export
    from tests.export.networks import SHAPE, images, network

    folder, made = tmp_path_factory.mktemp("pytorch"), {}
    for kind in ("torch-export", "vanilla"):
        target = TARGETS[kind]
        path = folder / f"net{target.suffix}"
        made[kind] = export(target, network("soc-circular"), path, SHAPE, "0123456789", images=images())
    return made
