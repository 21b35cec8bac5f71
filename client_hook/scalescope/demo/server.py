"""The server beside the demo: one that runs already, or a child process that ends with it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from scalescope.errors import CommandError

START_WITHIN_S = 60.0
STOP_WITHIN_S = 15.0
ASK_WITHIN_S = 2.0
HOST = "127.0.0.1"
DEFAULT_PORT = 8765


def is_ready(url: str) -> bool:
    """Whether a Scalescope server answers at ``url`` that it is ready."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=ASK_WITHIN_S)
    try:
        connection.request("GET", f"{parts.path}/readyz")
        response = connection.getresponse()
        answer = json.loads(response.read(10_000)) if response.status == http.client.OK else None
    except (OSError, ValueError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return isinstance(answer, dict) and answer.get("status") == "ready" and "version" in answer


@contextmanager
def serving(port: int | None, database: str | None) -> Iterator[tuple[str, bool]]:
    """(address, whether it is ours) of a ready server; one that had to be started is stopped at the end.

    A server that runs on the default port is used, unless another port or a database is asked for.

    Raises:
        CommandError: if the port that was asked for is taken, or the server does not start.
    """
    usual = f"http://{HOST}:{DEFAULT_PORT}"
    if port is None and database is None and is_ready(usual):
        yield usual, False
        return
    chosen = _free_port() if port is None and not _is_free(DEFAULT_PORT) else port or DEFAULT_PORT
    if port is not None and not _is_free(port):
        raise CommandError(f"port {port} is taken: choose another --port, or send to what is there with --url")
    process = _start(chosen, database)
    try:
        url = f"http://{HOST}:{chosen}"
        _wait_until_ready(url, process)
        yield url, True
    finally:
        _stop(process)


def _start(port: int, database: str | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "scalescope.cli", "serve", "--host", HOST, "--port", str(port)]
    if database is not None:
        command += ["--database", database]
    # It listens on loopback alone, so the token of another server has no business here.
    environment = {name: value for name, value in os.environ.items() if name != "SCALESCOPE_TOKEN"}
    return subprocess.Popen(  # noqa: S603 - our own module, in our own interpreter
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # Ctrl-C on the terminal is for the demo, which still has data to deliver before it stops the server.
        start_new_session=True,
    )


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while not is_ready(url):
        if process.poll() is not None:
            raise CommandError("the server did not start; see above, and try: scalescope serve")
        if time.monotonic() > deadline:
            raise CommandError(f"the server was not ready within {START_WITHIN_S:g} s; try: scalescope serve")
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except (OSError, OverflowError):
        return False
    return True


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
