"""The package is the bottom of the house: it knows tensors, and no modules."""

import ast
import importlib
import pkgutil
from pathlib import Path

import skewconv.rigor


def imported_names(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_no_module_imports_torch_nn():
    folder = Path(skewconv.rigor.__file__).parent
    names = {path.name: imported_names(path) for path in folder.glob("*.py")}
    assert "torch.Tensor" in names["eigenvalues.py"]
    assert not {(file, name) for file, found in names.items() for name in found if name.startswith("torch.nn")}


def test_every_public_function_is_offered_by_the_package():
    for info in pkgutil.iter_modules(skewconv.rigor.__path__):
        module = importlib.import_module(f"skewconv.rigor.{info.name}")
        own = {n for n, v in vars(module).items() if not n.startswith("_") and callable(v)}
        own = {n for n in own if vars(module)[n].__module__ == module.__name__}
        assert own <= set(skewconv.rigor.__all__), info.name
