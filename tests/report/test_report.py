"""`skewconv report`: one file that shows a run, or several, and figures for papers."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from skewconv.cli import main
from skewconv.records import read_record
from skewconv.report import collect, render_page
from skewconv.report.collect import training_curves
from skewconv.report.figures import FIGURES, curve
from skewconv.report.page import galleries
from skewconv.train.environment import read_log
from tests.report.conftest import HOSTILE

PARTS = ("Headline", "Certificates", "Training", "Gallery of test images", "Confusion matrix", "Layers")
PARTS += ("Attacks beside certificates",)
LOG_HEAD = "step,epoch,seconds,lr,loss,accuracy,images_per_second,test_clean,test_certified\n"


@pytest.fixture(scope="module")
def pages(audited, digits_run, tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    assert main(["report", str(audited), "--out", str(folder / "one.html")]) == 0
    assert main(["report", str(audited), str(digits_run), "--out", str(folder / "two.html")]) == 0
    return {path.stem: path.read_text() for path in folder.glob("*.html")}


@pytest.fixture
def copied(audited, tmp_path) -> Path:
    return shutil.copytree(audited, tmp_path / "run")


def test_every_part_and_every_figure_is_there_with_the_shares_of_the_certificates(audited, pages):
    assert all(f">{part}" in pages["one"] for part in PARTS)
    assert all(f'id="figure-{name}"' in pages["one"] for name in FIGURES)
    assert pages["one"].count("<figcaption>") == pages["one"].count("<figure")
    results = read_record(audited / "certificates.json")["results"]
    for share in (results["clean"], *results["certified"].values()):
        assert f"<dd>{share:.2%}</dd>" in pages["one"]


def test_the_page_refers_to_nothing_outside_itself(pages):
    for page in pages.values():
        assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page) == []
        assert "url(http" not in page
        assert "default-src 'none'" in page
        ids = re.findall(r'\bid="([^"]+)"', page)
        assert len(ids) == len(set(ids))


def test_names_that_come_from_data_are_text(hostile):
    page = render_page([hostile])
    assert not any(name in page for name in HOSTILE)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "$_{a}$ &amp; 100%" in page
    assert "</title>$" not in page
    # The page's own two, and none besides.
    assert len(re.findall(r"<script", page)) == 2


def test_two_runs_are_compared_and_what_is_missing_is_named_with_its_command(pages, digits_run):
    assert 'id="comparison"' in pages["two"]
    assert 'id="comparison"' not in pages["one"]
    rows = re.findall(r'<tr( class="differs")?><th scope="row">([^<]+)</th>', pages["two"])
    assert {name: bool(mark) for mark, name in rows}["clean accuracy"] is False
    assert f"skewconv audit {digits_run}" in pages["two"]
    assert "made for this report on all test images" in pages["two"]


def test_the_curve_of_the_page_is_the_certified_accuracy(facts):
    radii, shares = curve(facts, 1.0)
    found = facts.certificates.radius
    for radius, share in list(zip(radii, shares, strict=True))[::40]:
        assert share == sum(each >= radius and each > 0 for each in found.tolist()) / len(found)


def test_galleries_are_sorted_by_what_they_show(facts):
    largest, smallest, wrong = galleries(facts)
    radii = [[image["radius"] for image in gallery["images"]] for gallery in (largest, smallest)]
    assert radii == [sorted(radii[0], reverse=True), sorted(radii[1])]
    assert radii[0][0] == float(facts.certificates.radius.max())
    assert not any(image["right"] for image in wrong["images"])


def test_an_empty_table_and_records_of_other_weights_or_classes_are_not_shown(audited, copied):
    run = copied
    for name in ("certificates.json", "attack-pgd.json", "audit.json"):
        record = json.loads((run / name).read_text())
        record["results"]["weights_sha256"] = "0" * 64
        (run / name).write_text(json.dumps(record))
    (facts,) = collect([run])
    assert facts.origin.startswith("made for this report")
    assert (facts.attacks, facts.audit) == ((), None)
    assert sum("of these weights" in each for each in facts.missing) == 3
    shutil.copy(audited / "certificates.json", run)
    head, row, *_ = (run / "certificates.csv").read_text().splitlines()
    other = row.split(",", 2)
    for text, reason in ((head, "is empty, or of others"), (f"{head}\n{other[0]},99,{other[2]}", "of these classes")):
        (run / "certificates.csv").write_text(text + "\n")
        (facts,) = collect([run])
        assert facts.origin.startswith("made for this report")
        assert any(reason in each for each in facts.missing)


def test_fast_certificates_are_not_passed_off_as_those_of_the_trained_network(copied):
    assert main(["certify", str(copied), "--fast", "--images", "5", "--overwrite", "--json"]) == 0
    (facts,) = collect([copied])
    assert "of the network frozen at a tolerance of 0.001, not of the trained one" in facts.origin


def test_where_some_images_are_certified_for_the_page_they_are_spread_over_all(digits_run, monkeypatch):
    monkeypatch.setattr(sys.modules["skewconv.report.collect"], "SAMPLE", 10)
    (facts,) = collect([digits_run])
    assert facts.certificates.index.tolist() == [359 * number // 10 for number in range(10)]
    assert "10 of 359 test images, evenly spread" in facts.origin
    assert any("10 of 359 test images" in each for each in facts.missing)


def test_a_page_with_ten_thousand_certificates_is_small(copied):
    head, *rows = (copied / "certificates.csv").read_text().splitlines()
    (copied / "certificates.csv").write_text("\n".join([head, *(rows * 30)[:10_000]]) + "\n")
    page = render_page(collect([copied]))
    assert "<dd>10,000</dd>" in page
    assert len(page) < 5e6


def test_figures_are_written_for_papers(audited, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", str(audited), "--out", str(out), "--png", "--json"]) == 0
    first, *written = [Path(path) for path in json.loads(capsys.readouterr().out)["written"]]
    assert first == out
    assert {path.name for path in written} == {f"{name}.png" for name in FIGURES}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_what_makes_no_sense_or_is_missing_is_said_before_any_work(audited, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("skewconv.report.collect", lambda *_: pytest.fail("runs are read"))
    run = str(audited)
    for words, said in ([], "RUN is missing"), (["nowhere"], "nowhere"), ([run, "--out", "."], "--out is ."):
        assert main(["report", *words]) == 2
        assert said in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", run]) == 2
    assert "Jinja2 is needed here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            "2,0,1,0.1,2.0,0.1,9,,\n10,1,5,0.1,1.5,0.3,9,0.4,0.2\n15,1,8,0.1,1.0,0.4,9,,\n20,2,10,0.1,0.5,0.5,9,0.6,0.3\n",
            {
                "loss": [(0.2, 2.0), (1.0, 1.5), (1.5, 1.0), (2.0, 0.5)],
                "test_clean": [(1.0, 0.4), (2.0, 0.6)],
            },
        ),
        ("2,0,1,0.1,nan,0.1,9,,\n4,0,2,0.1,1.9,0.2,9,,\n\x00garbage\n6,0", {"loss": [(0, 1.9)], "test_clean": []}),
        ("", {"loss": []}),
    ],
    ids=["fractions of epochs", "cut off", "empty"],
)
def test_a_log_becomes_curves(tmp_path, rows, expected):
    (tmp_path / "log.csv").write_text(LOG_HEAD + rows)
    curves = training_curves(read_log(tmp_path / "log.csv"))
    assert {name: curves.get(name, []) for name in expected} == expected
