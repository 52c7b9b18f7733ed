"""A build fails if one of its pages would load a script, a style or a picture from another site."""

import re
from pathlib import Path
from typing import Any

# A link to another site is only followed by a reader; these are fetched by the page itself.
_FETCHED = re.compile(
    r"<(?:script|img|iframe)\b[^>]*\bsrc=\"(?:https?:)?//[^\"]*|<link\b[^>]*\bhref=\"(?:https?:)?//[^\"]*"
)


def _check(app: Any, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    found = [
        f"{page.name}: {fetched}"
        for page in Path(app.outdir).rglob("*.html")
        for fetched in _FETCHED.findall(page.read_text(encoding="utf-8"))
    ]
    if found:
        raise ValueError(f"pages must work without a network, but these ask other sites: {'; '.join(found[:5])}")


def setup(app: Any) -> dict[str, bool]:
    """Look at the pages when they are written."""
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True}
