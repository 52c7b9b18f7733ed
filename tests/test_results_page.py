"""RESULTS.md shows what the records hold, and the records say where they come from."""

import importlib
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("results")


def test_the_pages_of_results_are_made_from_the_records(results):
    pages = [page.read_text() for page in results.PAGES]
    assert all(sum(f"<!-- {name} -->" in page for page in pages) == 1 for name in results.TABLES)
    assert [results.render(page, results.TABLES) for page in pages] == pages


def test_the_list_of_the_papers_rows_has_all_54_and_counts_those_with_a_record(results):
    first, *lines = results.coverage().splitlines()
    cells = [cell.strip() for line in lines[3:] for cell in line.split("|")[3:5]]
    rows = {(name, r["results"]["row"]) for name in ("table2", "table3", "table4") for r in results.records(name)}
    of_the_paper = {(name, row) for name, row in rows if row.split("/")[1] in ("soc", "bcop", "standard")}
    assert len(cells) == 54
    assert f"54 rows of the paper's Tables 2, 3 and 4, {len(of_the_paper)} have" in first
    assert cells.count("none") == 54 - len(of_the_paper)


def test_the_plots_of_the_results_show_the_records(results):
    for plot in results.PLOTS:
        assert plot.path.exists() == bool(plot.shown())
        if plot.path.exists():
            with Image.open(plot.path) as picture:
                assert picture.text["Description"] == plot.digest()


def test_every_record_of_a_table_names_the_command_and_the_row_it_is_of(results):
    for name in ("table2", "table3", "table4"):
        for record in results.records(name):
            found, config = record["results"], record["config"]
            assert (found["experiment"], config["data"], record["git"]["dirty"]) == (name, "cifar10", False)
            assert f"--rows {found['row']} --seeds {record['seed']}" in found["command"]
            assert found["status"] == "diverged" or found["split"] == "test"


def test_no_trial_of_the_recipe_saw_a_test_image(results):
    for name in (results.TRIALS, results.RESIDUAL_TRIALS, results.CONTINUED_TRIALS):
        for record in results.records(name):
            assert record["results"]["split"] == "validation"
