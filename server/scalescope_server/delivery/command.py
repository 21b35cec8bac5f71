"""A command on the server's own machine: a list of arguments from its settings file, never from the API.

It is started without a shell; the message comes by standard input as JSON, the same as a webhook's body, so no word of
a trainer's is ever an argument. What it prints is kept by nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from asyncio.subprocess import DEVNULL, Process
from dataclasses import dataclass

import msgspec

from scalescope_server.delivery.messages import Message
from scalescope_server.delivery.outcome import DELIVERED, Outcome

DEFAULT_WITHIN_S = 10.0
# Less than a server keeps a message for itself (see ``store.outbox``).
LONGEST_WITHIN_S = 15.0
# The server's own settings, its token and passwords among them, are not the command's.
OURS = ("SCALESCOPE_", "PG")


@dataclass(frozen=True, slots=True)
class Command:
    """``arguments``: the program by its whole path, and what it is given. Status 0 says that it has told."""

    arguments: tuple[str, ...]
    within_s: float = DEFAULT_WITHIN_S


async def run(command: Command, message: Message) -> Outcome:
    """Start it with ``message`` on its standard input, and end it with all that it started when its time is over."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    try:
        # A file and not a pipe: whether the command reads it, and when, is its own affair.
        with tempfile.TemporaryFile() as given:
            given.write(msgspec.json.encode(message))
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *command.arguments, stdin=given, stdout=DEVNULL, stderr=DEVNULL, env=environment, start_new_session=True
            )
    except OSError as error:
        return Outcome(f"the command could not be started: {error.strerror or error}")
    try:
        async with asyncio.timeout(command.within_s):
            await process.wait()
    except TimeoutError:
        return Outcome(f"the command did not end within {command.within_s:g} s")
    finally:
        if process.returncode is None:
            _kill(process)
            await process.wait()
    return DELIVERED if process.returncode == 0 else Outcome(f"the command ended with status {process.returncode}")


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
