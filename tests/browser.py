"""A browser for the tests that look at pages: Chromium through Playwright, skipped loudly where there is none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# As root, as in containers, Chromium needs the first; the rest keeps it from the network.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Watch:
    """A page and what went wrong in it: messages of the console, errors, and every request it made."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))

    def asked_for(self) -> list[str]:
        """The addresses that were asked for, but for pictures that stand in the page itself."""
        return [url for url in self.requests if not url.startswith("data:")]

    def too_wide(self) -> bool:
        """Whether the page can be scrolled sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


@contextmanager
def watched(address: str, width: int = 1280, scheme: str = "light") -> Iterator[Watch]:
    """An address in a headless browser with a profile of its own, closed at the end."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("PAGES ARE NOT TESTED IN A BROWSER: playwright is missing: pip install '.[browser]'")
    program = os.environ.get("SKEWCONV_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip(
            "PAGES ARE NOT TESTED IN A BROWSER: none is here: apt-get install chromium, or set SKEWCONV_BROWSER"
        )
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=list(_FLAGS), timeout=120_000)
        try:
            context = opened.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            context.set_default_timeout(60_000)
            watch = Watch(context.new_page())
            watch.page.goto(address)
            yield watch
        finally:
            opened.close()
