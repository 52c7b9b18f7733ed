"""No file imports another that leads back to it, inside functions included."""

import ast
import graphlib
from pathlib import Path

import skewconv


def test_imports_have_no_cycle():
    root = Path(skewconv.__file__).parent
    files = {
        ".".join(p.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"): p
        for p in root.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        wanted = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        found = [alias.name for node in wanted if isinstance(node, ast.Import) for alias in node.names]
        for node in wanted:
            if isinstance(node, ast.ImportFrom):
                # A name of a package is a file of its own, or stands in the package.
                inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                found += [dotted if dotted in files else str(node.module) for dotted in inner.values()]
        graph[name] = {each for each in found if each in files and each != name}
    assert len([*graphlib.TopologicalSorter(graph).static_order()]) == len(files)
