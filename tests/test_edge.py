"""The outermost middleware by itself: the prefix, the headers, the bound on bodies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from fastapi import HTTPException
from scalescope_server.edge import MAX_BODY_BYTES, BodyLimit, RootPath, SecurityHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Inner:
    """An application that keeps the scope it was given, reads the body and answers."""

    def __init__(self) -> None:
        self.scope: Scope = {}
        self.body = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        more = scope["type"] == "http"
        while more:
            message = await receive()
            self.body += message["body"]
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-frame-options", b"SAMEORIGIN")]})


async def through(app: ASGIApp, scope: dict[str, Any], body: Iterable[bytes] = (b"",)) -> list[Message]:
    chunks, sent = list(body), []

    async def receive() -> Message:
        chunk = chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "http", "headers": [], **scope}, receive, send)
    return sent


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/api", "/x/api"), ("/x/api", "/x/api"), ("/x", "/x/"), ("/x/", "/x/"), ("/", "/x/"), ("/xy", "/x/xy")],
)
async def test_the_prefix_is_there_once_whatever_the_proxy_does(path: str, expected: str) -> None:
    inner = Inner()
    await through(RootPath(inner, "/x"), {"path": path})
    assert (inner.scope["root_path"], inner.scope["path"]) == ("/x", expected)


async def test_without_a_prefix_the_path_stays() -> None:
    inner = Inner()
    await through(RootPath(inner, ""), {"path": "/api"})
    assert inner.scope["path"] == "/api"


async def test_the_nonce_of_the_policy_is_the_one_the_page_is_given_and_set_headers_stay() -> None:
    inner = Inner()
    sent = await through(SecurityHeaders(inner), {"path": "/"})
    headers = dict(sent[0]["headers"])
    assert inner.scope["state"]["nonce"].encode() in headers[b"content-security-policy"]
    assert headers[b"x-frame-options"] == b"SAMEORIGIN"
    assert headers[b"x-content-type-options"] == b"nosniff"


@pytest.mark.parametrize("stated", [str(MAX_BODY_BYTES + 1), "-1", "1e3", "9" * 40, "\u0661"])
async def test_a_stated_size_above_the_limit_or_none_at_all_is_refused_unread(stated: str) -> None:
    inner = Inner()
    sent = await through(BodyLimit(inner), {"headers": [(b"content-length", stated.encode("latin-1", "replace"))]})
    assert sent[0]["status"] == 413
    assert not inner.scope


async def test_a_body_is_counted_as_it_comes() -> None:
    inner = Inner()
    half = bytes(MAX_BODY_BYTES // 2)
    await through(BodyLimit(inner), {}, [half, half])
    assert len(inner.body) == MAX_BODY_BYTES
    with pytest.raises(HTTPException) as caught:
        await through(BodyLimit(Inner()), {}, [half, half, b"x"])
    assert caught.value.status_code == 413
