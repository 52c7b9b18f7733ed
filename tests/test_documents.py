"""The documents show the numbers of the records, name what exists, and their code runs."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from PIL import Image

import skewconv
from skewconv.records import read_record

ROOT = Path(__file__).parents[1]
# The list of changes names what is gone, too.
PAGES = [*(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("results")


def test_the_tables_of_the_pages_are_those_of_the_records(results):
    tables = importlib.import_module("tables")
    for paths, shown in ((tables.PAGES, tables.TABLES), (results.PAGES, results.TABLES)):
        pages = [path.read_text() for path in paths]
        assert all(any(f"<!-- {name} -->" in page for page in pages) for name in shown)
        assert [tables.render(page, shown) for page in pages] == pages


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
    for name in (results.TRIALS, results.RESIDUAL_TRIALS):
        for record in results.records(name):
            assert record["results"]["split"] == "validation"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_file_name_and_test_that_a_page_mentions_exists(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
        made = target.startswith("tutorials/")  # by the build of the pages
        assert made or (page.parent / target).exists() or (page.parent / f"{target}.md").exists(), target
    for script in re.findall(r"python (benchmarks/\w+\.py)", text):
        assert (ROOT / script).is_file(), script
    for file, name in re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", text):
        places = [ROOT / file] if file else (ROOT / "tests").rglob("test_*.py")
        assert any(f"def {name}(" in place.read_text() for place in places), f"{file} {name}"
    for dotted in re.findall(r"`(skewconv(?:\.\w+)+)(?:\([^`]*\))?`", text):
        pkgutil.resolve_name(dotted)


def test_the_layers_send_a_reader_to_public_names_only():
    for name in skewconv.nn.__all__:
        for target in re.findall(r":class:`(\w+)`", inspect.getdoc(getattr(skewconv.nn, name)) or ""):
            assert target in skewconv.nn.__all__, f"{name} refers to {target}"


def test_the_comparison_with_other_libraries_is_of_the_versions_that_were_run_and_of_layers_that_exist():
    text = re.search(r"<!-- neighbours -->\n(.*?)<!-- end -->", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    rows = [[cell.strip() for cell in line.strip("|\n ").split(" | ")] for line in text.splitlines()]
    run = read_record(ROOT / "benchmarks" / "records" / "neighbours.json")["results"]
    assert rows[0][-2:] == [f"{name} {run[name]['version']}" for name in ("orthogonium", "deel-torchlip")]
    ours = {name: cells[0].split(", ") for name, *cells in rows[2:]}
    layers = ours["orthogonal convolutions"] + ours["other non-expansive layers"][:3]
    assert {f"{name}2d" for name in layers} <= set(skewconv.nn.__all__)


def test_the_race_for_known_distances_is_chosen_by_training_points_and_has_no_estimate_above_the_truth(results):
    tables = importlib.import_module("tables")
    rows = read_record(ROOT / "benchmarks" / "records" / "wasserstein.json")["results"]["rows"]
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        assert (ours["library"], theirs["library"]) == ("skewconv", "deel-torchlip")
        assert [ours[key] for key in ("pair", "shape", "exact")] == [theirs[key] for key in ("pair", "shape", "exact")]
    for row in rows:
        sums = {rate: sum(run["training"] for run in runs) for rate, runs in row["runs"].items()}
        assert sums[f"{row['rate']:g}"] == max(sums.values())
        assert all(run["found"] <= row["exact"] for run in tables.chosen_runs(row))


def test_every_theorem_of_the_paper_has_its_function_and_its_test():
    page = (ROOT / "docs" / "mathematics.md").read_text()
    for module in (ROOT / "tests" / "theorems").glob("test_theorem*.py"):
        assert f"tests/theorems/{module.name}::" in page, module.name


def test_every_message_of_the_troubleshooting_page_is_one_of_the_library():
    sources = "".join(path.read_text() for path in (ROOT / "skewconv").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", sources)  # literals that go on in the next line
    plain = re.sub(r"\{[^{}]*\}", "...", joined)
    for message in re.findall(r"^### `(.*)`$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE):
        for part in re.split(r"\.\.\.", message):
            assert part.strip(" ()") in plain, message


@pytest.mark.parametrize("page", ["index.md", "choosing.md", "certification.md", "migrating.md"])
def test_the_code_of_a_page_runs(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert blocks
    for code in blocks:
        exec(compile(code, page, "exec"), {})
    assert capsys.readouterr().out


def test_the_code_of_the_page_on_own_images_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SKEWCONV_CACHE", str(tmp_path / "cache"))
    for number in range(10):
        picture = Image.effect_noise((40, 36), 10.0 + 20 * (number % 2)).convert("RGB")
        folder = tmp_path / "pictures" / ("calm", "wild")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{number}.png")
    picture.save("new-picture.png")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own-images.md").read_text(), re.DOTALL)
    assert "size=32)" in code
    exec(compile(code.replace("size=32)", "size=32, epochs=1, width=2)"), "own-images.md", "exec"), {})
    assert capsys.readouterr().out.count("\n") == 2


def test_the_list_of_the_papers_rows_has_all_54_and_counts_those_with_a_record(results):
    first, *lines = results.coverage().splitlines()
    cells = [cell.strip() for line in lines[3:] for cell in line.split("|")[3:5]]
    rows = {(name, r["results"]["row"]) for name in ("table2", "table3", "table4") for r in results.records(name)}
    of_the_paper = {(name, row) for name, row in rows if row.split("/")[1] in ("soc", "bcop", "standard")}
    assert len(cells) == 54
    assert f"54 rows of the paper's Tables 2, 3 and 4, {len(of_the_paper)} have" in first
    assert cells.count("none") == 54 - len(of_the_paper)
