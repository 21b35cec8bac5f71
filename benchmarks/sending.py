"""The trainer's end of a connection, for frames that are there already: as fast as it goes, or so many a second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np
from scalescope.session import Frame, TrainerSession
from scalescope.wire import MAX_FRAME_BYTES, Hello, Record, encode
from websockets.sync.client import ClientConnection, connect


@dataclass(frozen=True, slots=True)
class Sent:
    """From the first frame to the last acknowledgement: seconds, what each frame waited, and how many acks came."""

    seconds: float
    delays: np.ndarray[tuple[int], np.dtype[np.float64]]
    acks: int

    def p99_ms(self) -> float:
        return float(np.percentile(self.delays, 99)) * 1e3


def frames(records: Sequence[Record]) -> list[Frame]:
    """Encoded, so that sending them costs no more than sending."""
    return [Frame(record.sequence, encode(record)) for record in records]


def send(url: str, hello: Hello, waiting: Sequence[Frame], *, per_second: float = 0.0) -> Sent:
    """Send frames numbered from 0 on and wait until all are acknowledged."""
    session = TrainerSession(hello)
    with connect(url.replace("http", "ws", 1) + "/api/ingest", compression=None, max_size=MAX_FRAME_BYTES) as socket:
        socket.send(session.open())
        session.receive(_received(socket))
        began = time.perf_counter()
        sent, acked, acks = np.zeros(len(waiting)), np.zeros(len(waiting)), 0
        while session.durable < waiting[-1].sequence:
            now = time.perf_counter()
            due = int((now - began) * per_second) + 1 if per_second else len(waiting)
            first = session.cursor + 1
            for data in session.sendable(islice(waiting, first, min(due, len(waiting)))):
                socket.send(data)
            sent[first : session.cursor + 1] = now
            before = session.durable
            with suppress(TimeoutError):
                durable = session.receive(_received(socket, 1 / per_second if per_second else None))
                acked[before + 1 : durable + 1] = time.perf_counter()
                acks += 1
        seconds = time.perf_counter() - began
    return Sent(seconds, acked - sent, acks)


def _received(socket: ClientConnection, timeout: float | None = None) -> bytes:
    data = socket.recv(timeout, decode=False)
    assert isinstance(data, bytes)
    return data
