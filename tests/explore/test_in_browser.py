"""The page in a browser: the slider, the certified zone, pictures of one's own, refusals."""

from PIL import Image

from tests.browser import watched

READY = 'body[data-busy="false"] .model'
SETTLED = 'body[data-busy="false"][data-shown="{}"]'


def moved(watch, value: int, shown: str) -> tuple[str, bool]:
    """Move the slider; the length that is shown then, and whether an attack of this length changed the class."""
    watch.page.locator("#length").fill(str(value))
    watch.page.wait_for_selector(f'body[data-busy="false"]:not([data-shown="{shown}"])')
    length = watch.page.locator("body").get_attribute("data-shown")
    return length, watch.page.locator(".verdict").get_attribute("data-changed") == "true"


def test_below_the_radius_no_attack_of_eight_images_changes_the_prediction_and_beyond_it_some_do(page):
    beyond = 0
    with watched(page.address) as watch:
        watch.page.wait_for_selector(READY)
        for number in range(8):
            watch.page.locator("#thumbnails button").nth(number).click()
            watch.page.wait_for_selector(SETTLED.format(0))
            watch.page.wait_for_selector(f'#thumbnails button[data-index="{number}"][aria-pressed="true"]')
            zone, bar = (watch.page.locator(place).first.bounding_box()["width"] for place in (".zone i", ".zone"))
            # Rounded down inside the zone, and never onto where it stands, which would change nothing.
            length, changed = moved(watch, max(1, int(970 * zone / bar)), "0")
            assert not changed, f"image {number} at length {length}"
            assert "no attack can change it" in watch.page.locator(".verdict").text_content()
            beyond += moved(watch, 1000, length)[1]
        assert beyond >= 1
        assert watch.complaints == []
        assert {url.removeprefix(page.address).partition("?")[0] for url in watch.asked_for()} <= {
            "", "explore.js", "explore.css", "api/models", "api/images", "api/look", "api/curve",
        }  # fmt: skip


def test_while_an_answer_is_awaited_no_sentence_speaks_of_another_length(page):
    with watched(page.address) as watch:
        watch.page.wait_for_selector(READY)
        watch.page.route("**/api/look", lambda route: None)
        watch.page.locator("#length").fill("500")
        watch.page.wait_for_selector(".verdict.awaited")
        length = watch.page.locator("#length-text").text_content().split()[0]
        assert f"attacking at length {length}" in watch.page.locator(".verdict").text_content()


def test_everything_is_there_on_a_phone_in_the_dark(page):
    with watched(page.address, 390, "dark") as watch:
        watch.page.wait_for_selector(READY)
        watch.page.wait_for_selector("#curve svg")
        assert not watch.too_wide()
        for place in (".pictures img", ".bars", ".zone i", "#set-text", "#json", "#drop"):
            assert watch.page.locator(place).count() > 0
        assert watch.page.locator(".bars .decides").count() == 1
        watch.page.locator("#json summary").click()
        assert '"arithmetic": "float64"' in watch.page.locator("#json-text").text_content()
        assert watch.complaints == []


def test_a_picture_of_ones_own_and_what_is_none(page, tmp_path):
    Image.new("RGB", (50, 40), "white").save(tmp_path / "own.png")
    (tmp_path / "text.png").write_text("no picture")
    with open(tmp_path / "huge.png", "wb") as file:
        file.truncate(200_000_000)
    with watched(page.address) as watch:
        watch.page.wait_for_selector(READY)
        for name, place in (
            ("own.png", "text=resized and cropped from 50 x 40 pixels"),
            ("text.png", "#note.error:has-text('cannot be read as an image')"),
            ("huge.png", "#note.error:has-text('more than 10 MB')"),
        ):
            watch.page.locator("#file").set_input_files(tmp_path / name)
            watch.page.wait_for_selector(place)
        watch.page.locator("#thumbnails button").nth(1).click()
        watch.page.wait_for_selector('#thumbnails button[data-index="1"][aria-pressed="true"]')
        watch.page.wait_for_selector(SETTLED.format(0))
