"""Names that come from data are text, wherever they are shown."""

import dataclasses
import re
from types import SimpleNamespace

from skewconv.cli import main
from skewconv.report import collect, render_page
from tests.report.conftest import HOSTILE


def test_class_names_are_escaped(hostile, monkeypatch, tmp_path):
    monkeypatch.setenv("SKEWCONV_CACHE", str(hostile.parent / "cache"))
    words = ["--out", str(tmp_path / "page.html"), "--latex", "--csv", "--svg"]
    assert main(["report", str(hostile), *words]) == 0
    page = (tmp_path / "page.html").read_text()
    for name in HOSTILE[:2]:
        assert name not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "$_{a}$ &amp; 100%" in page
    # The page's own two, and none besides.
    assert len(re.findall(r"<script", page)) == 2
    assert "onerror=alert(1)>" not in page


def test_a_whole_script_element_is_escaped(digits_run):
    """A folder cannot bear this name, since it has a slash; a checkpoint can."""
    (facts,) = collect([digits_run])
    name = "<script>alert(1)</script>"
    data = dataclasses.replace(facts.run.data, classes=(name, *facts.run.data.classes[1:]))
    fields = ("config", "model", "input_shape", "path", "dataset")
    run = SimpleNamespace(data=data, **{each: getattr(facts.run, each) for each in fields})
    page = render_page([dataclasses.replace(facts, run=run, name="</title>" + name)])
    assert name not in page
    assert "</title><" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
