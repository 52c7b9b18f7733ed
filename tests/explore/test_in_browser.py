"""The page in a browser: the slider, the certified zone, pictures of one's own, refusals."""

import pytest

from tests.browser import Watch, browser

SETTLED = 'body[data-busy="false"][data-shown="{}"]'


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


def opened(chromium, page, **context) -> Watch:
    watch = Watch(chromium, **context)
    watch.page.goto(page.address)
    watch.page.wait_for_selector('body[data-busy="false"] .model')
    return watch


def move(watch: Watch, share: float) -> tuple[float, bool]:
    """Put the slider at a share of the certified zone's width; the length, and whether the prediction changed."""
    zone, bar = (watch.page.locator(place).first.bounding_box()["width"] for place in (".zone i", ".zone"))
    slider = watch.page.locator("#length")
    # Rounded down inside the zone, and never onto where it stands, which would change nothing.
    slider.fill(str(max(1, min(1000, int(1000 * share * zone / bar)))))
    watch.page.wait_for_selector('body[data-busy="false"]:not([data-shown="0"])')
    length = float(watch.page.locator("body").get_attribute("data-shown"))
    return length, watch.page.locator(".verdict").get_attribute("data-changed") == "true"


def test_below_the_radius_no_attack_of_eight_images_changes_the_prediction_and_beyond_it_some_do(chromium, page):
    watch = opened(chromium, page, viewport={"width": 1280, "height": 900})
    buttons = watch.page.locator("#thumbnails button")
    beyond = 0
    for number in range(8):
        buttons.nth(number).click()
        watch.page.wait_for_selector(SETTLED.format(0))
        watch.page.wait_for_selector(f'#thumbnails button[data-index="{number}"][aria-pressed="true"]')
        length, changed = move(watch, 0.97)
        assert length > 0
        assert not changed, f"image {number} at length {length}"
        assert "no attack can change it" in watch.page.locator(".verdict").text_content()
        watch.page.locator("#length").fill("1000")
        watch.page.wait_for_selector(f'body[data-busy="false"]:not([data-shown="{length}"])')
        beyond += watch.page.locator(".verdict").get_attribute("data-changed") == "true"
    assert beyond >= 1
    assert watch.complaints == []
    assert {url.removeprefix(page.address).partition("?")[0] for url in watch.asked_for()} <= {
        "", "explore.js", "explore.css", "api/models", "api/images", "api/look", "api/curve",
    }  # fmt: skip
    watch.context.close()


def test_everything_is_there_on_a_phone_in_the_dark(chromium, page):
    watch = opened(chromium, page, viewport={"width": 390, "height": 800}, color_scheme="dark")
    watch.page.wait_for_selector("#curve svg")
    assert not watch.too_wide()
    for place in (".pictures img", ".bars", ".zone i", "#set-text", "#json", "#show-layers", "#drop"):
        assert watch.page.locator(place).count() > 0
    assert watch.page.locator(".bars .decides").count() == 1
    watch.page.locator("#json summary").click()
    assert '"arithmetic": "float64"' in watch.page.locator("#json-text").text_content()
    assert watch.complaints == []
    watch.context.close()


def test_a_picture_of_ones_own_and_what_is_none(chromium, page, tmp_path):
    from PIL import Image

    Image.new("RGB", (50, 40), "white").save(tmp_path / "own.png")
    (tmp_path / "text.png").write_text("no picture")
    watch = opened(chromium, page)
    watch.page.locator("#file").set_input_files(tmp_path / "own.png")
    watch.page.wait_for_selector("text=resized and cropped from 50 x 40 pixels")
    watch.page.wait_for_selector("text=your picture >> visible=true")
    watch.page.locator("#file").set_input_files(tmp_path / "text.png")
    watch.page.wait_for_selector("#note.error:has-text('cannot be read as an image')")
    with open(tmp_path / "huge.png", "wb") as file:
        file.truncate(200_000_000)
    watch.page.locator("#file").set_input_files(tmp_path / "huge.png")
    watch.page.wait_for_selector("#note.error:has-text('more than 10 MB')")
    watch.page.locator("#thumbnails button").nth(1).click()
    watch.page.wait_for_selector('#thumbnails button[data-index="1"][aria-pressed="true"]')
    watch.page.wait_for_selector(SETTLED.format(0))
    watch.context.close()
