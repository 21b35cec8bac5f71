"""A real server for tests: uvicorn on a free loopback port in a thread, over a SQLite file."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scalescope.numerics.exponents import Histograms
from scalescope.packing import pack
from scalescope.rows import column
from scalescope.wire import (
    PROTOCOL,
    Ack,
    Bye,
    Event,
    FromServer,
    FromTrainer,
    Hello,
    Layout,
    Module,
    Parameter,
    Record,
    Sample,
    ScalerSettings,
    Steps,
    decode_from_server,
    encode,
)
from scalescope_server.app import create_app, create_server
from scalescope_server.settings import Settings
from scalescope_server.store.engine import Store, open_store
from websockets.sync.client import ClientConnection, connect

DEADLINE_S = 20.0


@dataclass(frozen=True)
class Answer:
    """What an HTTP call gave; ``headers`` by lower-case name."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body, parse_constant=_no_constant)


@dataclass(frozen=True)
class Address:
    """A server that listens on a port of this machine."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def call(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        chunks: list[bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request on a connection of its own.

        ``body``: bytes go as they are, anything else as JSON. ``chunks``: a body that does not state its size.
        """
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json"} if raw is not None or chunks else {}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)) as connection:
            connection.request(method, path, chunks or raw, given | (headers or {}), encode_chunked=chunks is not None)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def is_ready(self) -> bool:
        """Wait until it is so: a database that answers only after a second counts as one that does not."""
        return self.get("/readyz").status == 200

    @contextlib.contextmanager
    def trainer(self, hello: Hello | None = None, **headers: str) -> Iterator[Trainer]:
        """A trainer that has connected and, with ``hello``, been welcomed."""
        with connect(f"{self.ws}/api/ingest", compression=None, additional_headers=headers) as socket:
            trainer = Trainer(socket)
            if hello is not None:
                trainer.send(hello)
                trainer.received()
            yield trainer

    @contextlib.contextmanager
    def page(self, run: str | None = None, **headers: str) -> Iterator[Page]:
        """A page's live connection, greeted."""
        query = f"?run={run}" if run else ""
        url = f"{self.ws}/api/live{query}"
        with connect(url, compression=None, additional_headers=headers) as socket:
            page = Page(socket)
            assert page.next()["type"] == "hello"
            yield page


@dataclass(frozen=True)
class Served(Address):
    """A server of this process. ``store`` is the one it uses; ``stop`` asks it to stop."""

    settings: Settings
    store: Store
    stop: Callable[[], None]


@dataclass
class Trainer:
    """The trainer's end of a connection, one message at a time."""

    socket: ClientConnection
    durable: int = -1

    def send(self, *messages: FromTrainer) -> None:
        for message in messages:
            self.socket.send(encode(message))

    def received(self) -> FromServer:
        frame = self.socket.recv(timeout=DEADLINE_S)
        assert isinstance(frame, bytes)
        return decode_from_server(frame)

    def deliver(self, *records: Record) -> None:
        """Send and wait until the last is acknowledged."""
        self.send(*records)
        while self.durable < records[-1].sequence:
            message = self.received()
            assert isinstance(message, Ack), message
            self.durable = message.durable


@dataclass
class Page:
    """A page's end of a live connection."""

    socket: ClientConnection
    told: list[dict[str, Any]] = field(default_factory=list)

    def next(self) -> dict[str, Any]:
        text = self.socket.recv(timeout=DEADLINE_S)
        assert isinstance(text, str)
        self.told.append(json.loads(text, parse_constant=_no_constant))
        return self.told[-1]

    def until(self, true: Callable[[dict[str, Any]], bool], within_s: float = DEADLINE_S) -> dict[str, Any]:
        """The first message from now on that fits; fails after the deadline."""
        ends = time.monotonic() + within_s
        while time.monotonic() < ends:
            if true(message := self.next()):
                return message
        raise AssertionError(f"never told; the last was {self.told[-1]}")


@contextlib.contextmanager
def serving(database: str, *, clock: Callable[[], float] = time.time, **settings: Any) -> Iterator[Served]:
    """A server over ``database`` with ``settings`` by name, stopped in order at the end."""
    chosen = replace(Settings(database=database), **settings)
    store = open_store(chosen.database, clock=clock, silent_after_s=chosen.silent_after_s)
    listening = socket.create_server(("127.0.0.1", 0))
    server = create_server(create_app(chosen, store, clock=clock))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="served")
    thread.start()

    def stop() -> None:
        server.should_exit = True

    try:
        yield Served(listening.getsockname()[1], chosen, store, stop)
    finally:
        stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the server did not stop"


def ok(served: Address, path: str) -> Any:
    """What the server answers to a GET that it can answer."""
    answer = served.get(path)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def error(served: Served, path: str, status: int, method: str = "GET", body: object = None) -> dict[str, Any]:
    """What it says is wrong."""
    answer = served.call(method, path, body=body)
    assert answer.status == status, answer.body
    told = answer.json()
    assert set(told) == {"error"}
    assert set(told["error"]) == {"code", "message", "field"}
    found: dict[str, Any] = told["error"]
    return found


def hello(run: str = "run-1", *, segment: str = "seg-1", rank: int = 0, **changes: Any) -> Hello:
    scaler = ScalerSettings(
        name="GradScaler", enabled=True, scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
    )
    fields: dict[str, Any] = {
        "protocol": PROTOCOL,
        "run": run,
        "segment": segment,
        "rank": rank,
        "world_size": 2,
        "started_at": 1_700_000_000.0,
        "project": "tests",
        "name": "a run",
        "tags": ["one"],
        "config": '{"width": 64}',
        "environment": {"torch": "2.13"},
        "scaler": scaler,
        "optimizers": [],
        "every": 10,
    }
    return Hello(**(fields | changes))


def layout(sequence: int, *modules: tuple[str, str]) -> Layout:
    """The parameters of one block, and ``modules`` by name and class."""
    parameters = [Parameter(name, "block", [4, 4], "float32", 16, "fp16") for name in ("block.weight", "block.bias")]
    told = [Module(*module) for module in modules]
    return Layout(sequence=sequence, parameters=parameters, order="observed", backward=[1, 0], modules=told)


def steps(sequence: int, first: int, count: int = 1, **columns: list[float]) -> Steps:
    """Updates at scale 65536, none skipped, unless ``columns`` say otherwise."""
    whole = {"scale": [65536.0] * count, "skipped": [0.0] * count} | columns
    rows = np.arange(count)
    return Steps(
        sequence=sequence,
        first=first,
        count=count,
        at=(1_700_000_000.0 + first + np.arange(count, dtype="<f8")).tobytes(),
        columns={name: column(rows, np.array(values)) for name, values in whole.items()},
    )


def sample(sequence: int, step: int, *, scale: float | None = 65536.0, exponent: int = -3) -> Sample:
    """A periodic sample of the two parameters of :func:`layout`: 10 values in one bin, 4 zero, 1 inf, 1 NaN."""
    table = Histograms.empty(2)
    table.counts[:, exponent + 126] = 10
    table.zero[:], table.inf[:], table.nan[:] = 4, 1, 1
    table.amax[:], table.sum_squares[:] = 2.0**exponent, 10 * 4.0**exponent
    return Sample(
        sequence=sequence,
        step=step,
        at=1_700_000_000.0 + step,
        kind="grad",
        reason="periodic",
        scale=scale,
        micro_batches=1,
        parameters=b"",
        table=pack(table),
    )


def skip(sequence: int, step: int) -> Event:
    data = '{"scale": 65536.0, "next_scale": 32768.0, "parameter": "block.bias", "nonfinite": {"block.bias": 3}}'
    return Event(sequence=sequence, step=step, at=1_700_000_000.0 + step, kind="skip", data=data)


def bye(sequence: int) -> Bye:
    return Bye(sequence=sequence, at=1_700_000_100.0, reason="finished", detail="")


def _no_constant(name: str) -> None:
    raise AssertionError(f"an answer held {name}, which is no JSON")
