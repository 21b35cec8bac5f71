"""What every request passes on its way in and out: the published prefix, the headers, the size of a body."""

from __future__ import annotations

import secrets

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scalescope_server.answers import error_answer
from scalescope_server.errors import TooLargeError

MAX_BODY_BYTES = 1024 * 1024
_LIMIT = f"expected a body of at most {MAX_BODY_BYTES} bytes"

# Plotly writes style attributes and one style element, which the page holds ready with the nonce.
_POLICY = (
    "default-src 'none'; "
    "script-src 'self' 'nonce-{nonce}'; "
    "style-src 'self' 'nonce-{nonce}'; "
    "style-src-elem 'self' 'nonce-{nonce}'; "
    "style-src-attr 'unsafe-inline'; "
    "img-src 'self' data: blob:; "
    "font-src 'self'; "
    "connect-src 'self'; "
    "manifest-src 'self'; "
    "base-uri 'none'; "
    "form-action 'self'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer": with it, browsers send "Origin: null" with the forms of our own pages.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class RootPath:
    """Serve below ``root_path`` whether or not the proxy in front takes the prefix away."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._root and scope["type"] in ("http", "websocket"):
            inner = scope["path"].removeprefix(self._root) if self._is_below(scope["path"]) else scope["path"]
            scope = {**scope, "root_path": self._root, "path": self._root + (inner or "/")}
        await self._app(scope, receive, send)

    def _is_below(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root + "/")


class SecurityHeaders:
    """The headers of every answer, and ``request.state.nonce`` for the inline elements of a page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonce = secrets.token_urlsafe(16)
        scope.setdefault("state", {})["nonce"] = nonce

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("content-security-policy", _POLICY.format(nonce=nonce))
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class BodyLimit:
    """Refuse request bodies above :data:`MAX_BODY_BYTES`, whether they state their size or not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stated = Headers(scope=scope).get("content-length", "0")
        if not stated.isdecimal() or int(stated) > MAX_BODY_BYTES:
            answer = error_answer(
                TooLargeError(f"expected a body of at most {MAX_BODY_BYTES} bytes, got {stated[:20]}")
            )
            await answer(scope, receive, send)
            return
        await self._app(scope, _bounded(receive), send)


def _bounded(receive: Receive) -> Receive:
    taken = 0

    async def receive_bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MAX_BODY_BYTES:
            # FastAPI lets this class through while it reads a body, and no other.
            raise HTTPException(TooLargeError.status, _LIMIT)
        return message

    return receive_bounded
