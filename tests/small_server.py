"""A small real server for the trainer's side: real sockets, the real session and ledger, records in memory."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from scalescope.ledger import Ledger
from scalescope.session import ServerSession, SessionError, ack
from scalescope.wire import MAX_FRAME_BYTES, Bye, Heartbeat, Hello, Record, Refused, encode
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

DEADLINE_S = 20.0

# Below those that a system gives to whoever asks for any, and from a place that each process of tests has for itself:
# nobody takes one between our look and its use.
_PORTS = range(10_000, 32_000)
_ports = itertools.islice(itertools.cycle(_PORTS), os.getpid() * 7919 % len(_PORTS), None)

# A client that leaves in the middle of its greeting is no event, least of all one among a test's log lines.
_silent = logging.getLogger("tests.small_server")
_silent.propagate = False
_silent.addHandler(logging.NullHandler())

# normal · accepts the socket and says nothing · welcomes and never acknowledges · welcomes and hangs up on records
Manner = Literal["normal", "mute", "no acks", "hangs up"]


@dataclass
class Shelf:
    """What servers have stored; outlives each of them. Wait on it with :meth:`until`."""

    ledger: Ledger = field(default_factory=Ledger)
    records: list[Record] = field(default_factory=list)
    hellos: list[Hello] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    duplicates: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def until(self, true: Callable[[Shelf], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: true(self), DEADLINE_S), "the server never got there"

    def store(self, message: Hello | Record | Heartbeat) -> None:
        with self.changed:
            if isinstance(message, Hello):
                self.hellos.append(message)
            elif isinstance(message, Heartbeat):
                self.heartbeats.append(message)
            elif message.sequence in self.ledger:
                self.duplicates += 1
            else:
                self.ledger = self.ledger.add(message.sequence)
                self.records.append(message)
            self.changed.notify_all()


class SmallServer:
    """Serves on loopback in threads; ``kill`` cuts every connection as a killed process would."""

    def __init__(self, shelf: Shelf, *, port: int = 0, manner: Manner = "normal", token: str | None = None) -> None:
        self._shelf = shelf
        self._manner = manner
        self._token = token
        self._open: set[ServerConnection] = set()
        self._server: Server = serve(
            self._converse,
            "127.0.0.1",
            port or free_port(),
            compression=None,
            max_size=MAX_FRAME_BYTES,
            ping_interval=None,
            close_timeout=0.5,
            logger=_silent,
        )
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.port: int = self._server.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self._server.shutdown()
        for connection in list(self._open):
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE_S)

    def _converse(self, connection: ServerConnection) -> None:
        self._open.add(connection)
        with suppress(ConnectionClosed):
            if self._refused(connection):
                return
            session = ServerSession()
            while True:
                self._answer(connection, session, connection.recv(decode=False))
        self._open.discard(connection)

    def _refused(self, connection: ServerConnection) -> bool:
        assert connection.request is not None
        if self._token and connection.request.headers.get("Authorization") != f"Bearer {self._token}":
            connection.send(encode(Refused(code="token", message="this token is not known here", retry=False)))
            return True
        return False

    def _answer(self, connection: ServerConnection, session: ServerSession, frame: bytes) -> None:
        try:
            message = session.receive(frame)
        except SessionError as error:
            connection.send(encode(error.refusal))
            raise ConnectionError from error
        if self._manner == "hangs up" and isinstance(message, Record):
            connection.close()
            return
        self._shelf.store(message)
        if isinstance(message, Hello):
            if self._manner != "mute":
                connection.send(session.welcome(self._shelf.ledger, "small"))
        elif isinstance(message, Record) and self._manner == "normal":
            connection.send(ack(message.sequence))


@contextmanager
def serving(
    shelf: Shelf, *, port: int = 0, manner: Manner = "normal", token: str | None = None
) -> Iterator[SmallServer]:
    server = SmallServer(shelf, port=port, manner=manner, token=token)
    try:
        yield server
    finally:
        server.kill()


def free_port() -> int:
    """A port on which nobody listens, and nobody else will: for a server of the test's own, now or later, or none."""
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def hello(run: str = "run", segment: str = "segment", rank: int = 0) -> Hello:
    return Hello(
        protocol=1,
        run=run,
        segment=segment,
        rank=rank,
        world_size=rank + 1,
        started_at=0.0,
        project="test",
        name=None,
        tags=[],
        config="{}",
        environment={},
        scaler=None,
        optimizers=[],
        every=10,
    )


def farewell(records: list[Record]) -> Bye:
    """The last record, which says how the segment ended."""
    assert isinstance(records[-1], Bye)
    return records[-1]
