"""Requests are served to a browser on this machine that knows the token, and refused otherwise."""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from skewconv.extras import optional

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: the page runs its own script alone, shows only pictures that stand in it, and cannot be framed
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": _POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-store",
}


@dataclass(frozen=True)
class OriginCheck:
    """Refuses requests caused by other web pages or other names of this machine.

    A web page elsewhere can make a browser send requests to loopback, and a name that it controls can be made to point
    there. Such requests bear another Host or Origin, and do not know the token, the first part of every path.
    """

    app: App
    token: str
    port: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403 with a reason."""
        if scope["type"] != "http":
            return
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        if refusal := self._refusal(headers, scope["path"]):
            response = optional("starlette.responses", "starlette", "explore").PlainTextResponse
            # The rest of a refused request is not read.
            await response(f"{refusal}\n", 403, {"connection": "close"})(scope, receive, _with_headers(send))
            return
        inner = {**scope, "path": scope["path"][len(self.token) + 1 :] or "/", "raw_path": None}
        await self.app(inner, receive, _with_headers(send))

    def _refusal(self, headers: dict[bytes, list[bytes]], path: str) -> str:
        hosts = {f"{name}:{self.port}".encode() for name in ("127.0.0.1", "localhost")}
        given = headers.get(b"host", [])
        if len(given) != 1 or given[0].lower() not in hosts:
            return "this page is served to 127.0.0.1 and localhost only"
        origins = {b"http://" + host for host in hosts}
        if any(origin.lower() not in origins for origin in headers.get(b"origin", [])):
            return "this page is served to itself only, not to another origin"
        if any(site not in (b"same-origin", b"none") for site in headers.get(b"sec-fetch-site", [])):
            return "this page is served to itself only, not to another site"
        first = path.split("/")[1] if path.startswith("/") else ""
        if not hmac.compare_digest(first.encode(), self.token.encode()):
            return "the address lacks its token: use the one that skewconv explore printed"
        return ""


def _with_headers(send: Send) -> Send:
    async def sender(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *HEADERS.items()]}
        await send(message)

    return sender
