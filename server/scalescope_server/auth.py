"""Who may ask: names, origins and the token, checked before any room sees a request or a WebSocket.

A dashboard on localhost is within reach of every page its user visits. So a Host header must hold one of our
names (a rebound DNS name does not), and what can change or stream something must come from our own pages: a
browser says so in Origin and Sec-Fetch-Site, other programs send neither.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

from fastapi import APIRouter, Request, Response
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from scalescope_server.answers import error_answer
from scalescope_server.errors import ForbiddenError, InvalidError, ServerError, UnauthorizedError
from scalescope_server.settings import WILDCARDS, Settings, bracketed

COOKIE = "scalescope_session"
SESSION_DAYS = 30

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/login"})
TRAINERS_PATH = "/api/ingest"

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
# Where people read the answer themselves.
_PAGE = re.compile(r"/?|/alerts|/runs/.*", re.DOTALL)
_DEFAULT_PORTS = {"http": "80", "https": "443"}

# What to do, for whoever reads it: the hook repeats the server's sentence in its log line.
_FOR_TRAINERS = "this server asks for its token: set SCALESCOPE_TOKEN to it"
_FOR_OTHERS = (
    "this server asks for its token: open the login address that 'scalescope serve' printed, "
    "or send 'Authorization: Bearer TOKEN'"
)

router = APIRouter(include_in_schema=False)


class Guard:
    """ASGI middleware that answers what may not pass with one of :mod:`scalescope_server.errors`."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            check(scope, self._settings)
        except ServerError as error:
            await _refuse(error, scope, receive, send)
            return
        await self._app(scope, receive, send)


def check(scope: Scope, settings: Settings) -> None:
    """Whether the request or WebSocket of ``scope`` may pass.

    Raises:
        InvalidError: without a readable Host header.
        ForbiddenError: for a foreign Host, or a page of another origin that writes or opens a WebSocket.
        UnauthorizedError: without the token, where there is one.
    """
    headers = Headers(scope=scope)
    host = _check_host(headers, settings)
    if scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS:
        _check_origin(headers, host, settings)
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    if path not in OPEN_PATHS and not authorized(headers, settings.token):
        raise UnauthorizedError(_FOR_TRAINERS if path == TRAINERS_PATH else _FOR_OTHERS)


def authorized(headers: Mapping[str, str], token: str | None) -> bool:
    """Whether ``headers`` (lower-case names) show ``token``, as a bearer or by the cookie that login sets."""
    if token is None:
        return True
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and _same(shown.strip(), token):
        return True
    return _same(_cookie(headers.get("cookie", "")), session_of(token))


def session_of(token: str) -> str:
    """The cookie's value: shown by whoever knew ``token``, and of no use to find it."""
    return hmac.new(token.encode(), b"scalescope session 1", hashlib.sha256).hexdigest()


@router.get("/login")
async def login(request: Request, token: str = "") -> Response:
    """Exchange the token in the address for a cookie, so that it leaves the address bar at once."""
    settings: Settings = request.app.state.rooms.settings
    home = RedirectResponse(f"{settings.root_path}/", status_code=303, headers={"cache-control": "no-store"})
    if settings.token is None:
        return home
    if not _same(token, settings.token):
        return PlainTextResponse("This is not the token of this server.\n", status_code=401)
    # Not "strict": such a cookie is kept from the first page after a click in a chat or a notebook. What writes
    # or opens a socket is held to our own origins anyway.
    home.set_cookie(
        COOKIE,
        session_of(settings.token),
        max_age=SESSION_DAYS * 86_400,
        path=settings.root_path or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
    return home


def _check_host(headers: Headers, settings: Settings) -> str:
    given = headers.getlist("host")
    found = _HOST.fullmatch(given[0].lower()) if len(given) == 1 else None
    if found is None:
        raise InvalidError("expected one Host header with a name and perhaps a port", field="host")
    name = found[1]
    ours = {*LOOPBACK_NAMES, bracketed(settings.host.lower()), *map(_without_port, settings.allow_hosts)}
    # An address in the Host header cannot have been rebound: only names can.
    if name not in ours and not (settings.host in WILDCARDS and _is_address(name)):
        raise ForbiddenError(f"this server is not known as {name!r}: start it with --allow-host {name}", field="host")
    return given[0].lower()


def _check_origin(headers: Headers, host: str, settings: Settings) -> None:
    origins = headers.getlist("origin")
    if any(origin.lower() in settings.allow_origins for origin in origins) and len(origins) == 1:
        return
    if any(not _is_own(origin.lower(), host) for origin in origins) or len(origins) > 1:
        raise ForbiddenError("this call may only come from the server's own pages", field="origin")
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise ForbiddenError("this call may only come from the server's own pages", field="sec-fetch-site")


def _is_own(origin: str, host: str) -> bool:
    """Whether ``origin`` is where ``host`` (already known to be ours) serves its pages."""
    scheme, _, netloc = origin.partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    return port is not None and _with_port(netloc, port) == _with_port(host, port)


def _with_port(netloc: str, default: str) -> tuple[str, str] | None:
    found = _HOST.fullmatch(netloc)
    return (found[1], found[2] or default) if found else None


def _without_port(name: str) -> str:
    found = _HOST.fullmatch(name)
    return found[1] if found else bracketed(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _same(shown: str, expected: str) -> bool:
    return hmac.compare_digest(shown.encode(), expected.encode())


async def _refuse(error: ServerError, scope: Scope, receive: Receive, send: Send) -> None:
    # A WebSocket is refused before its handshake, so nobody unknown has one; the hook reads this answer.
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    for_people = isinstance(error, UnauthorizedError) and _PAGE.fullmatch(path) is not None
    answer = PlainTextResponse(f"{error.message}\n", error.status) if for_people else error_answer(error)
    await answer(scope, receive, send)
