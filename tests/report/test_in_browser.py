"""The report as a browser shows it: from disk, alone, whole, at any width, and with hostile names as text."""

import pytest

from skewconv.report import render_page
from skewconv.report.figures import FIGURES
from tests.browser import watched
from tests.report.conftest import HOSTILE


@pytest.fixture(scope="module")
def address(facts, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(render_page([facts]))
    return file.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_opens_from_disk_without_a_complaint_or_a_request_and_shows_every_figure(address, width, scheme):
    with watched(address, width, scheme) as watch:
        assert watch.complaints == []
        assert watch.asked_for() == [address]
        assert not watch.too_wide()
        for name in FIGURES:
            box = watch.page.locator(f"#figure-{name}").bounding_box()
            assert box["width"] > 250
            assert box["height"] > 60
        pictures = watch.page.locator(".gallery img")
        assert pictures.count() > 20
        assert pictures.evaluate_all("all => all.every(each => each.complete && each.naturalWidth > 0)")


def test_the_cursor_reads_the_curve(address):
    with watched(address) as watch:
        watch.page.locator("#cursor").fill("0")
        assert watch.page.locator("#cursor-radius").text_content() == "0.000 (0/255)"
        clean = watch.page.locator("dt:text-is('clean accuracy') + dd").text_content()
        shown = watch.page.locator("#cursor-shares li").text_content()
        assert float(shown.rpartition(": ")[2].rstrip("%")) == pytest.approx(float(clean.rstrip("%")), abs=0.06)
        watch.page.locator("#cursor").fill("240")
        assert watch.page.locator("#cursor-shares li").text_content().endswith(": 0.0%")
        assert watch.complaints == []


def test_a_class_named_as_a_script_is_text(hostile, tmp_path):
    (tmp_path / "page.html").write_text(render_page([hostile]))
    with watched((tmp_path / "page.html").as_uri()) as watch:
        assert HOSTILE[0] in watch.page.locator(".confusion").inner_text()
        assert watch.page.locator("img[src=x]").count() == 0
        assert watch.complaints == []
