"""The wheel holds the package and nothing else, the sdist all that its tests need, and the core stands by itself."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from skewconv import __version__

ROOT = Path(__file__).parents[1]
HIDE = """
import sys
hidden = set({hidden!r})

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hide())
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the wheel and the sdist, built from this tree."""
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("there is no source tree to build from")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_holds_the_package_and_the_sdist_what_its_tests_need(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {"skewconv", f"skewconv-{__version__}.dist-info"}
    assert "skewconv/py.typed" in names
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = ("README.md", "pyproject.toml", "tests/conftest.py", "docs/mathematics.md", "examples/core.py")
    assert set(needed) <= names
    assert not any(name.startswith((".venv", "build", "runs", ".git/")) for name in names)


def test_the_core_of_the_wheel_needs_torch_numpy_and_scipy_only(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # What would make `import skewconv.nn` take much longer than `import torch`.
    slow = {"scipy.special", "scipy.linalg", "torch._dynamo", "torch._inductor", "sympy"}
    code = HIDE.format(hidden=sorted(_extra_modules())) + (
        f"slow = {slow!r}\n"
        "try:\n    import rich\nexcept ModuleNotFoundError:\n    print('rich is hidden')\n"
        "import torch, skewconv.nn, skewconv.models\n"
        "print(skewconv.__file__)\n"
        "print(sorted(slow & set(sys.modules)))\n"
        "model = skewconv.models.LipConvnet(5, in_channels=1, input_size=8, width=4).eval()\n"
        "print(float(skewconv.certify.radii(model, torch.rand(1, 1, 8, 8), torch.tensor([0]))))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "rich is hidden"
    assert done.stdout.splitlines()[1].startswith(str(tmp_path))
    assert done.stdout.splitlines()[2] == "[]"


def _extra_modules() -> set[str]:
    """The packages that the library imports only where an extra was installed."""
    sources = "".join(path.read_text() for path in (ROOT / "skewconv").rglob("*.py"))
    found = {*re.findall(r'optional\(\s*"(\w+)', sources), "anyio", "starlette", "tyro", "uvicorn"}
    assert {"rich", "onnx", "safetensors", "PIL", "starlette", "lightning_fabric"} <= found
    return found - {"torch"}
