"""What a round is played on: a server as an operator runs it, its database, and a line to it that can be cut."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tests.chaos.databases import Database
from tests.chaos.ear import Overheard
from tests.proxy import Proxy, between
from tests.small_server import free_port

ROOT = Path(__file__).parents[2]
LOOK_EVERY_S = 0.02
ANSWER_WITHIN_S = 10.0


class Server:
    """``scalescope serve`` in a process of its own, always on the same port. Its log is kept in ``log``."""

    def __init__(self, database: str, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log: TextIO = log.open("a")
        serve = ["serve", "--port", str(self.port), "--database", database]
        self._command = [sys.executable, "-m", "scalescope.cli", *serve]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns once it listens."""
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the server did not start: see {self._log.name}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def close(self) -> None:
        self.kill()
        self._log.close()


@dataclass(eq=False)
class Health:
    """Answers of ``/healthz``, one after the other: how many came, the slowest of them, and those that were none.

    ``late_s``: how much too late the asking thread woke at worst: a machine that is too busy for it is so for
    the server, too.
    """

    port: int
    answers: int = 0
    slowest_s: float = 0.0
    late_s: float = 0.0
    failures: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        """Until :meth:`end`."""
        while self._waited():
            began = time.monotonic()
            try:
                with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_WITHIN_S)) as connection:
                    connection.request("GET", "/healthz")
                    status = connection.getresponse().status
            except OSError as error:
                self.failures.append(str(error))
                continue
            if status != http.client.OK:
                self.failures.append(f"HTTP {status}")
            self.answers += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _waited(self) -> bool:
        """Whether to ask again, after a while."""
        began = time.monotonic()
        over = self._over.wait(LOOK_EVERY_S)
        self.late_s = max(self.late_s, time.monotonic() - began - LOOK_EVERY_S)
        return not over

    def end(self) -> None:
        self._over.set()


@dataclass
class Stage:
    """A server at work. ``proxy`` stands before it and overhears what it acknowledges."""

    folder: Path
    database: Database
    server: Server
    proxy: Proxy
    overheard: Overheard

    @contextmanager
    def watched(self) -> Iterator[Health]:
        """Ask for the server's health all the while."""
        health = Health(self.server.port)
        thread = threading.Thread(target=health.look, name="health")
        thread.start()
        try:
            yield health
        finally:
            health.end()
            thread.join()


@contextmanager
def stage(folder: Path, database: Database) -> Iterator[Stage]:
    """A server on ``database``, which must have been started."""
    with ExitStack() as stack:
        server = Server(database.url, folder / f"{database.name}.log")
        stack.callback(server.close)
        server.start()
        overheard = Overheard()
        proxy = stack.enter_context(between(server.url, ear=lambda: overheard.join().hear))
        yield Stage(folder, database, server, proxy, overheard)
