"""One WebSocket conversation with the server: a thin shell around :class:`TrainerSession`.

Both who sends while a training runs (:mod:`scalescope.link`) and who delivers a spool file later
(:mod:`scalescope.push`) speak through it; they differ in what waits and in when they are done.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from scalescope.session import Frame, SessionError, TrainerSession
from scalescope.settings import ingest_url
from scalescope.version import __version__
from scalescope.wire import Heartbeat, Hello, RefusalCode, encode

HEARTBEAT_S = 5.0
OPEN_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0

# Who loses its place so often within that time has a rival, and leaves the place to it.
RIVALRY_LOSSES = 3
RIVALRY_S = 300.0

# The server's longest message is a refusal with its sentence.
MAX_ANSWER_BYTES = 256 * 1024

# What may go wrong with a connection. RuntimeError: no thread for a name lookup once the interpreter ends.
# ImportError: a SOCKS proxy is configured and its package is not there. ValueError: a host that is no name.
TROUBLE = (OSError, WebSocketException, SessionError, RuntimeError, ImportError, ValueError)

UNAUTHORIZED_ADVICE = "set SCALESCOPE_TOKEN to the token of that server"
_UNAUTHORIZED = 401
_HTTP_ADVICE = {
    _UNAUTHORIZED: UNAUTHORIZED_ADVICE,
    # Our own server says what it wants: this is another check, or a proxy's.
    403: "start the server with --allow-host and the name it is reached by, or ask whoever runs the proxy before it",
}
_ADVICE: dict[RefusalCode, str] = {
    "token": UNAUTHORIZED_ADVICE,
    "protocol": "install the same version of scalescope on both sides",
    "superseded": "give each process a rank or a run of its own",
}
_OTHER_ADVICE = "what it says names the cause"


class _Error(msgspec.Struct):
    message: str


class _Answer(msgspec.Struct):
    """An answer that is an error, as the HTTP API words it."""

    error: _Error


class Backlog(Protocol):
    """What a connection delivers."""

    def waiting(self, after: int) -> Iterator[Frame]:
        """The records above the sequence ``after``, in order."""
        ...

    def acknowledge(self, durable: int) -> object:
        """Every record up to ``durable`` is stored by the server."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """The server and what it wants to see."""

    url: str
    token: str | None


class Connection:
    """One attempt to talk to the server, and the conversation if it succeeds.

    Args:
        hello: who calls.
        backlog: what to deliver.
        news: set by the owner when the backlog grew.
        heartbeat: the message for this moment, asked for at once and every 5 s; None sends none.
        on_change: called after the welcome and after every acknowledgement.
    """

    def __init__(
        self,
        hello: Hello,
        backlog: Backlog,
        news: asyncio.Event,
        *,
        heartbeat: Callable[[], Heartbeat] | None = None,
        on_change: Callable[[], None],
    ) -> None:
        self.sent = 0
        self.sent_bytes = 0
        self.acknowledgements = 0
        self.open = False
        self._session = TrainerSession(hello)
        self._backlog = backlog
        self._news = news
        self._heartbeat = heartbeat
        self._on_change = on_change
        self._socket: ClientConnection | None = None

    async def run(self, peer: Peer) -> None:
        """Talk until cancelled. Raises one of ``TROUBLE``, alone or in a group, when the connection ends."""
        try:
            async with _dial(peer) as socket:
                await self._greet(socket)
                self._socket = socket
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._receive(socket))
                    group.create_task(self._send(socket))
                    group.create_task(self._beat(socket))
        finally:
            self.open = False
            self._socket = None

    async def beat(self) -> None:
        """Say now what the next sign of life would say, where there is a connection."""
        if self._socket is not None and self._heartbeat is not None:
            with suppress(ConnectionClosed):
                await self._put(self._socket, encode(self._heartbeat()))

    async def _greet(self, socket: ClientConnection) -> None:
        # A server that accepts and never answers must not hold us.
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            with suppress(ConnectionClosed):  # one that refuses before we speak has left its reason to read
                await self._put(socket, self._session.open())
            answer = await socket.recv(decode=False)
        self._take(answer)
        self.open = True
        self._on_change()

    async def _receive(self, socket: ClientConnection) -> None:
        while True:
            data = await socket.recv(decode=False)
            waits = self._session.full
            self._take(data)
            self.acknowledgements += 1
            self._on_change()
            if waits:
                # The acknowledgement made room for more.
                self._news.set()

    async def _send(self, socket: ClientConnection) -> None:
        # When the socket closes, the receiving side still has a refusal to read that says why.
        with suppress(ConnectionClosed):
            while True:
                self._news.clear()
                for data in self._session.sendable(self._backlog.waiting(self._session.cursor)):
                    await self._put(socket, data)
                    self.sent += 1
                await self._news.wait()

    async def _beat(self, socket: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            while self._heartbeat:
                await self._put(socket, encode(self._heartbeat()))
                await asyncio.sleep(HEARTBEAT_S)

    async def _put(self, socket: ClientConnection, data: bytes) -> None:
        await socket.send(data)
        self.sent_bytes += len(data)

    def _take(self, data: bytes) -> None:
        self._backlog.acknowledge(self._session.receive(data))


@dataclass(slots=True)
class Rivalry:
    """Whether to call again after a later connection of the same rank has taken our place.

    It may have been ours: one that a server was slow to answer, which we gave up for another. A process that holds the
    same rank is told from that by coming again: then the one that came first gives way, as it has lost more often.
    """

    _lost_at: list[float] = field(default_factory=list)

    def goes_on(self, error: BaseException, now: float) -> bool:
        """Whether to try again after ``error`` came at ``now``, in seconds."""
        if not isinstance(error, SessionError) or error.refusal.code != "superseded":
            return False
        self._lost_at = [*(at for at in self._lost_at if now - at < RIVALRY_S), now]
        return len(self._lost_at) < RIVALRY_LOSSES


def reason(error: BaseException) -> str:
    """What went wrong, in a few words for a log line."""
    if isinstance(error, InvalidStatus):
        said = _said(error)
        return f"it answered HTTP {error.response.status_code}" + (f": {said}" if said else "")
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno:
        # Name lookups have numbers of their own, below zero, and say it well themselves.
        return (os.strerror(error.errno) if error.errno > 0 else str(error.strerror)).lower()
    return str(error) or type(error).__name__


def final_refusal(error: BaseException) -> str | None:
    """What to do about a refusal that trying again does not change; None for anything else."""
    if isinstance(error, InvalidStatus):
        advice = _HTTP_ADVICE.get(error.response.status_code)
        return _OTHER_ADVICE if advice and _said(error) else advice
    if not isinstance(error, SessionError) or error.refusal.retry:
        return None
    return _ADVICE.get(error.refusal.code, _OTHER_ADVICE)


def asks_for_token(error: BaseException) -> bool:
    """Whether the server refuses for want of its token."""
    if isinstance(error, InvalidStatus):
        return error.response.status_code == _UNAUTHORIZED
    return isinstance(error, SessionError) and error.refusal.code == "token"


def _said(error: InvalidStatus) -> str:
    """The sentence of the server's own answer (a host name it does not know, for one), "" for another's."""
    try:
        answer = msgspec.json.decode(error.response.body or b"", type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return answer.error.message


def _dial(peer: Peer) -> connect:
    headers = {"Authorization": f"Bearer {peer.token}"} if peer.token else {}
    # A proxy set for the internet has no way to this machine's own loopback.
    proxy: Literal[True] | None = None if _is_loopback(peer.url) else True
    return connect(
        ingest_url(peer.url),
        additional_headers=headers,
        user_agent_header=f"scalescope/{__version__}",
        compression=None,
        max_size=MAX_ANSWER_BYTES,
        open_timeout=OPEN_TIMEOUT_S,
        close_timeout=CLOSE_TIMEOUT_S,
        proxy=proxy,
    )


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
