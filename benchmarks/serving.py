"""A server as an operator runs it: a process of its own on a free port of loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs."""

    url: str
    pid: int

    def resident_mib(self) -> float:
        """What it holds in memory now, on Linux."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def cpu_s(self) -> float:
        """The seconds of a processor that it has taken so far, on Linux."""
        told = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")

    def settle(self) -> None:
        """Wait until it does nothing more: what a server does once when it begins is over. At most 60 s."""
        for _ in range(120):
            before = self.cpu_s()
            time.sleep(0.5)
            if self.cpu_s() - before <= 0.02 and not self._helpers():
                return

    def _helpers(self) -> list[str]:
        """The processes that it has started and that have not ended: those that compile kernels."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [pid for children in threads for pid in children.read_text().split()]


@contextmanager
def serving(folder: str) -> Iterator[str]:
    """Its address; the database is in ``folder``."""
    with served(f"{folder}/b.db") as server:
        yield server.url


@contextmanager
def served(database: str) -> Iterator[Server]:
    """A server over ``database``, a path or an address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = [sys.executable, "-m", "scalescope.cli", "serve", "--port", str(port), "--database", database]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if not process.stdout.readline():  # It prints its address once it listens.
                raise SystemExit("the server did not start; see above")
            yield Server(f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()
