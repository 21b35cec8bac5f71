"""Where a stored run is read: a server over HTTP, or a database that the installed server package opens.

Both answer the calls of the HTTP API with its bytes. The hook never imports the server: whoever can open a database
says so through the entry-point group ``scalescope.databases``.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Literal, Protocol, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from scalescope.errors import ScalescopeError

GROUP = "scalescope.databases"
# A page of the largest table may take a while to read.
TIMEOUT_S = 60.0
PIECE_BYTES = 256 * 1024

Call = Literal["", "series", "layers", "histogram", "findings", "export"]
Option = str | int | Sequence[str]
Options = Mapping[str, Option]


class ReadError(ScalescopeError):
    """A run that could not be read; the message is one line that says why."""


class Source(Protocol):
    """What answers the calls below ``/api/runs/{run}``. ``options`` are those of the API, None is not among them."""

    def ask(self, run: str, call: Call, options: Options) -> Iterator[bytes]:
        """The answer, piece by piece. Raises :class:`ReadError`, or one of the source's own."""
        ...


class ServerSource:
    """A server at ``url``, an address such as "http://127.0.0.1:8765" with or without a path."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, run: str, call: Call, options: Options) -> Iterator[bytes]:
        parts = urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=TIMEOUT_S)
        path = f"{parts.path}/api/runs/{quote(run, safe='')}" + (f"/{call}" if call else "")
        try:
            connection.request("GET", f"{path}?{urlencode(options, doseq=True)}", headers=self._headers)
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise ReadError(_said(answer) or f"{self._url} answered HTTP {answer.status}")
            while piece := answer.read(PIECE_BYTES):
                yield piece
        except http.client.IncompleteRead as error:
            raise ReadError(f"{self._url} ended in the middle of an answer; its log says why") from error
        except (OSError, http.client.HTTPException) as error:
            raise ReadError(f"no answer from {self._url}: {error}") from error
        finally:
            connection.close()


def database_source(database: str) -> Source:
    """The database at ``database``, a path or URL.

    Raises:
        ReadError: where nothing that is installed can open one.
    """
    for entry in entry_points(group=GROUP):
        try:
            opened = cast("Callable[[str], Source]", entry.load())
        except ModuleNotFoundError as error:
            raise ReadError(f"{error.name} is not installed: this needs pip install 'scalescope[server]'") from error
        return opened(database)
    raise ReadError("a database is read by the server's package: pip install 'scalescope[server]', or name a url")


class _Error(msgspec.Struct):
    message: str


class _Answer(msgspec.Struct):
    error: _Error


def _said(answer: http.client.HTTPResponse) -> str:
    try:
        return msgspec.json.decode(answer.read(), type=_Answer).error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
