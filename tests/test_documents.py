"""The documents show what the records hold."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_tables_of_the_performance_page_are_those_of_the_records():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    page = tables.PAGE.read_text()
    assert all(f"<!-- {name} -->" in page for name in tables.TABLES)
    assert tables.render(page) == page


def test_every_picture_of_the_documents_is_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for line in page.read_text().splitlines():
            if line.startswith("!["):
                assert (page.parent / line.split("(")[1].rstrip(")")).is_file(), line
