"""A process that knows nothing of this library, and one network for each target that PyTorch reads."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

# What a product's own process does: no skewconv there, whatever is installed.
_STRANGER = """
import runpy, sys
sys.modules["skewconv"] = None
import numpy as np, onnxruntime, torch

images, (kind, path) = np.load("images.npy"), sys.argv[1:]
if kind == "onnx":
    found = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"images": images})
else:
    network = torch.export.load(path).module() if kind == "torch-export" else runpy.run_path(path)["load"]()
    with torch.no_grad():
        found = network(torch.from_numpy(images))
np.savez("found.npz", *found)
"""


@pytest.fixture(scope="session")
def run_as_stranger(tmp_path_factory):
    """(kind, path, images) -> what the file gives in a fresh process that cannot import skewconv."""
    folder = tmp_path_factory.mktemp("stranger")

    def run(kind, path, images):
        np.save(folder / "images.npy", images.numpy())
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, "-c", _STRANGER, kind, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
        assert done.returncode == 0, done.stderr[-2000:]
        with np.load(folder / "found.npz") as found:
            return [torch.from_numpy(found[name]) for name in found.files]

    return run


@pytest.fixture(scope="session")
def files_for_pytorch(tmp_path_factory):
    """kind -> the export, its file to open last."""
    from tests.export.networks import exported

    folder = tmp_path_factory.mktemp("pytorch")
    return {kind: exported(kind, "soc-circular", folder) for kind in ("torch-export", "vanilla")}
