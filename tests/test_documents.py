"""The documents show what the records hold."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_tables_of_the_pages_are_those_of_the_records():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    pages = [path.read_text() for path in tables.PAGES]
    assert all(any(f"<!-- {name} -->" in page for page in pages) for name in tables.TABLES)
    assert [tables.render(page) for page in pages] == pages


def test_every_picture_of_the_documents_is_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for line in page.read_text().splitlines():
            if line.startswith("!["):
                assert (page.parent / line.split("(")[1].rstrip(")")).is_file(), line
