"""The pages: an HTML shell each, which its script fills from the API, and the files they need.

A shell holds nothing from a trainer; what it is given (addresses, the nonce) is escaped by Jinja. Static files
are served under a version in their path, so that a browser may keep them for ever and never runs half of an
old page with half of a new one; any other version gets today's file, to be asked for again.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from typing import Annotated

import jinja2
from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import HTMLResponse

from scalescope_server.compressed import takes_gzip
from scalescope_server.errors import NotFoundError

router = APIRouter(include_in_schema=False)

FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
PLOTLY = "plotly.min.js"

# The system's table may say anything; a script of the wrong type does not run under "nosniff".
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


@router.get("/")
def runs(request: Request) -> HTMLResponse:
    return _page(request, "runs.html")


@router.get("/runs/{run}")
def overview(request: Request, run: str) -> HTMLResponse:
    return _page(request, "overview.html", run)


@router.get("/runs/{run}/layers")
def layers(request: Request, run: str) -> HTMLResponse:
    return _page(request, "layers.html", run)


@router.get("/runs/{run}/layers/{parameter:path}")
def layer(request: Request, run: str, parameter: str) -> HTMLResponse:
    return _page(request, "layer.html", run, parameter)


@router.get("/alerts")
def alerts(request: Request) -> HTMLResponse:
    return _page(request, "alerts.html")


@router.get("/alerts/channels")
def channels(request: Request) -> HTMLResponse:
    return _page(request, "channels.html")


@router.get("/favicon.ico")
def favicon() -> Response:
    return _answer("icon.svg", None, ASK_AGAIN)


@router.get("/static/{version}/{name}")
def static(
    version: str,
    name: str,
    if_none_match: Annotated[str | None, Header()] = None,
    accept_encoding: Annotated[str, Header()] = "",
) -> Response:
    """A file of the front end, or plotly.js out of the installed plotly wheel: 4.8 MB, 1.5 MB compressed."""
    if name != PLOTLY and name not in _served():
        raise NotFoundError(f"there is no file called {name!r}", field="name")
    current = plotly_version() if name == PLOTLY else frontend_version()
    keep = FOR_EVER if version == current else ASK_AGAIN
    return _answer(name, if_none_match, keep, compressed=takes_gzip(accept_encoding))


@functools.cache
def frontend_version() -> str:
    """A digest of every served file: another content has another address."""
    digest = hashlib.sha256()
    for name in sorted(_served()):
        digest.update(name.encode() + (_frontend() / name).read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def plotly_version() -> str:
    return metadata.version("plotly")


@functools.cache
def plotly_styles() -> list[str]:
    """Ids of the style elements that plotly.js makes unless the page has them.

    The first holds its rules for charts, so the page gives it the nonce. The others are of its maps, which no
    page draws: that they are there keeps them from being made, which the policy would refuse aloud.
    """
    script = _file(PLOTLY)[0].decode()
    return ["plotly.js-style-global", *sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', script)))]


@functools.cache
def _served() -> frozenset[str]:
    return frozenset(item.name for item in _frontend().iterdir() if _suffix(item.name) in _TYPES)


@functools.cache
def _frontend() -> Traversable:
    return resources.files("scalescope_server.frontend")


@functools.cache
def _templates() -> jinja2.Environment:
    folder = _frontend()
    loader = jinja2.FunctionLoader(lambda name: (folder / name).read_text("utf-8"))
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)


def _page(request: Request, template: str, run: str = "", parameter: str = "") -> HTMLResponse:
    root = request.scope.get("root_path", "")
    text = (
        _templates()
        .get_template(template)
        .render(
            nonce=request.state.nonce,
            root=root,
            static=f"{root}/static/{frontend_version()}",
            plotly=f"{root}/static/{plotly_version()}/{PLOTLY}",
            plotly_styles=plotly_styles(),
            run=run,
            parameter=parameter,
        )
    )
    # The nonce is good for one answer: a kept page would be refused its own style.
    return HTMLResponse(text, headers={"cache-control": "no-store"})


def _answer(name: str, known: str | None, keep: str, *, compressed: bool = False) -> Response:
    content, tag = _compressed(name) if compressed else _file(name)
    headers = {"etag": tag, "cache-control": keep, "vary": "accept-encoding"}
    if known is not None and tag in (part.strip() for part in known.split(",")):
        return Response(status_code=304, headers=headers)
    if compressed:
        headers["content-encoding"] = "gzip"
    return Response(content, media_type=_TYPES[_suffix(name)], headers=headers)


@functools.cache
def _compressed(name: str) -> tuple[bytes, str]:
    content, tag = _file(name)
    return gzip.compress(content, mtime=0), f'{tag[:-1]}-gzip"'


@functools.cache
def _file(name: str) -> tuple[bytes, str]:
    """(content, entity tag) of a served file; there are few, so all are kept."""
    folder = resources.files("plotly") / "package_data" if name == PLOTLY else _frontend()
    content = (folder / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:20]}"'


def _suffix(name: str) -> str:
    return name[name.rfind(".") :] if "." in name else ""
