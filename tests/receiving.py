"""A real HTTP server on a loopback port that receives webhooks, and answers as it is told to."""

from __future__ import annotations

import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
from scalescope_server.delivery.signing import key_of, signature

DEADLINE_S = 20.0
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
# Of the name hooks.example.test, signed by itself.
CERTIFICATE = Path(__file__).parent / "samples" / "hooks.example.test.pem"


@dataclass(frozen=True)
class Received:
    """One request; ``headers`` by lower-case name. ``at``: when all of it was there, in seconds since the epoch."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def key(self) -> str:
        return self.headers["webhook-id"]

    @property
    def message(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def is_signed(self) -> bool:
        at = int(self.headers["webhook-timestamp"])
        return self.headers["webhook-signature"] == signature(key_of(SECRET), self.key, at, self.body)


@dataclass
class Receiver:
    """``answers``: statuses or whole answers for the next requests; 204 after them. ``hold`` keeps answers back."""

    port: int = 0
    received: list[Received] = field(default_factory=list)
    answers: deque[int | bytes] = field(default_factory=deque)
    hold: threading.Event = field(default_factory=threading.Event)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.hold.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def note(self, received: Received) -> None:
        with self._changed:
            self.received.append(received)
            self._changed.notify_all()

    def wait(self, count: int, within_s: float = DEADLINE_S) -> list[Received]:
        """The requests so far, once there are ``count`` of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.received) >= count, within_s), len(self.received)
            return list(self.received)


@contextmanager
def receiving(*answers: int | bytes, tls: bool = False, port: int = 0) -> Iterator[Receiver]:
    """A receiver that runs."""
    receiver = Receiver(answers=deque(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if len(body) < int(self.headers["content-length"]):
                return  # Whoever sent it was killed meanwhile.
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.note(Received("POST", self.path, headers, body, time.time()))
            receiver.hold.wait(DEADLINE_S)
            answer = receiver.answers.popleft() if receiver.answers else 204
            if isinstance(answer, int):
                answer = b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % answer
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Not into the tests' output."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            """A client that has left, or does not trust the certificate."""

    with Server(("127.0.0.1", port), Handler) as server:
        if tls:
            trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            trusted.load_cert_chain(CERTIFICATE)
            server.socket = trusted.wrap_socket(server.socket, server_side=True)
        receiver.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.hold.set()
            server.shutdown()
            thread.join()
