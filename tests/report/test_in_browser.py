"""The report as a browser shows it: from disk, alone, whole, at any width, and with hostile names as text."""

import pytest

from skewconv.cli import main
from skewconv.report import render_page
from skewconv.report.figures import FIGURES
from tests.browser import Watch, browser
from tests.report.conftest import HOSTILE


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(audited, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    assert main(["report", str(audited), "--out", str(file)]) == 0
    return file.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_opens_from_disk_without_a_complaint_or_a_request_and_shows_every_figure(chromium, address, width, scheme):
    watch = Watch(chromium, viewport={"width": width, "height": 800}, color_scheme=scheme)
    watch.page.goto(address)
    assert watch.complaints == []
    assert watch.asked_for() == [address]
    assert not watch.too_wide()
    for name in FIGURES.keys() - {"confusion"}:
        box = watch.page.locator(f"#figure-{name}").bounding_box()
        assert box is not None
        assert box["width"] > 250
        assert box["height"] > 60
    pictures = watch.page.locator(".gallery img")
    assert pictures.count() > 20
    assert pictures.evaluate_all("all => all.every(each => each.complete && each.naturalWidth > 0)")
    watch.context.close()


def test_the_cursor_reads_the_curve(chromium, address):
    watch = Watch(chromium)
    watch.page.goto(address)
    watch.page.locator("#cursor").fill("0")
    assert watch.page.locator("#cursor-radius").text_content() == "0.000 (0/255)"
    clean = watch.page.locator("dt:text-is('clean accuracy') + dd").text_content()
    shown = watch.page.locator("#cursor-shares li").text_content()
    assert float(shown.rpartition(": ")[2].rstrip("%")) == pytest.approx(float(clean.rstrip("%")), abs=0.06)
    watch.page.locator("#cursor").fill("240")
    assert watch.page.locator("#cursor-shares li").text_content().endswith(": 0.0%")
    assert watch.complaints == []
    watch.context.close()


def test_a_class_named_as_a_script_is_text(chromium, hostile, tmp_path):
    (tmp_path / "page.html").write_text(render_page([hostile]))
    watch = Watch(chromium)
    dialogs = []
    watch.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    watch.page.goto((tmp_path / "page.html").as_uri())
    assert dialogs == []
    assert watch.complaints == []
    assert HOSTILE[0] in watch.page.locator(".confusion").inner_text()
    assert watch.page.locator("img[src=x]").count() == 0
    watch.context.close()
