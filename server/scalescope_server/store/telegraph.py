"""Telegrams over Postgres: LISTEN and NOTIFY, in a thread and on a connection of their own.

Apart from the transactions that ingest commits: a commit with a NOTIFY in it waits for every other one. What was not
told while the database was away is told when it is back.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import psycopg

from scalescope_server.store.telegrams import Heard, Telegram, merged

CHANNEL = "scalescope"
# The first goes out at once, then all that gathered so often.
EVERY_S = 0.05
# How long a connection may be silent before it is looked at; and how long one that failed is left alone.
QUIET_S = 1.0
RETRY_S = 0.5
STOP_WITHIN_S = 2.0
# Runs that changed while the database is away. The other servers find what is beyond by looking.
MAX_WAITING = 4096

logger = logging.getLogger("scalescope.server")

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Telegram)

_TELL = "SELECT pg_notify(%s, told) FROM unnest(%s::text[]) AS told"


class PostgresTelegraph:
    """Tells and hears on the connections that ``dial`` opens, in autocommit, one after the other."""

    def __init__(self, dial: Callable[[], psycopg.Connection[Any]]) -> None:
        self.listening = False
        self._dial = dial
        self._heard: Heard = _to_nobody
        self._waiting: dict[str, Telegram] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        # Rings while there is a connection: whoever tells is not to wait for it.
        self._bell: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="scalescope-telegraph", daemon=True)

    def start(self, heard: Heard) -> None:
        self._heard = heard
        self._thread.start()

    def tell(self, telegram: Telegram) -> None:
        with self._lock:
            silent = not self._waiting
            if telegram.run in self._waiting or len(self._waiting) < MAX_WAITING:
                self._waiting[telegram.run] = merged(self._waiting.get(telegram.run), telegram)
        if silent:
            self._ring()

    def stop(self) -> None:
        self._stopping.set()
        self._ring()
        # A connection that is being opened takes its time: it is left to itself.
        self._thread.join(STOP_WITHIN_S)

    def _ring(self) -> None:
        bell = self._bell
        if bell is not None:
            with suppress(OSError):
                bell.send(b"\0")

    def _run(self) -> None:
        told = False
        while not self._stopping.is_set():
            try:
                with self._dial() as connection:
                    connection.execute(f"LISTEN {CHANNEL}".encode())
                    self.listening, told = True, False
                    self._converse(connection)
                    self.listening = False
            except (psycopg.Error, OSError) as error:
                self.listening = False
                if not told and not self._stopping.is_set():
                    logger.warning("other servers are asked every second, since they cannot be heard: %s", error)
                told = True
            self._stopping.wait(RETRY_S)

    def _converse(self, connection: psycopg.Connection[Any]) -> None:
        bell, ear = socket.socketpair()
        with bell, ear, selectors.DefaultSelector() as selector:
            bell.setblocking(False)
            ear.setblocking(False)
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(ear, selectors.EVENT_READ)
            self._bell = bell
            tell_at = time.monotonic()
            while not self._stopping.is_set():
                selector.select(QUIET_S if not self._waiting else max(0.0, tell_at - time.monotonic()))
                with suppress(BlockingIOError):
                    ear.recv(4096)
                if self._waiting and time.monotonic() >= tell_at:
                    self._tell(connection)
                    tell_at = time.monotonic() + EVERY_S
                # Behind that: what came with the answer is read by then, and nothing would tell of it.
                self._hear(connection)
        self._tell(connection)

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        mine = connection.info.backend_pid
        telegrams = [_read(notify.payload) for notify in connection.notifies(timeout=0) if notify.pid != mine]
        if found := [telegram for telegram in telegrams if telegram is not None]:
            self._heard(found)

    def _tell(self, connection: psycopg.Connection[Any]) -> None:
        with self._lock:
            taken, self._waiting = self._waiting, {}
        if not taken:
            return
        try:
            connection.execute(_TELL, [CHANNEL, [_encoder.encode(t).decode() for t in taken.values()]])
        except psycopg.Error:
            with self._lock:
                self._waiting = {**taken, **{run: merged(taken.get(run), t) for run, t in self._waiting.items()}}
            raise


def _read(payload: str) -> Telegram | None:
    """None for what is not ours: anyone may notify."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError:
        return None


def _to_nobody(_: Sequence[Telegram]) -> None:
    pass
