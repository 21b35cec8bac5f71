"""A server as an operator runs it: a process of its own on a free port of loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(folder: str) -> Iterator[str]:
    """Its address; the database is in ``folder``."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = [sys.executable, "-m", "scalescope.cli", "serve", "--port", str(port), "--database", f"{folder}/b.db"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            if not server.stdout.readline():  # It prints its address once it listens.
                raise SystemExit("the server did not start; see above")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
