"""An event loop whose name lookups hold up neither its end nor the process's.

A lookup may hang for half a minute and cannot be cancelled. asyncio runs it in a pool of threads that its own
end, and the interpreter's, wait for; here it is a daemon thread, one at a time for each name.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any

# What socket.getaddrinfo gives; the types of asyncio word it differently in each version.
Addresses = list[Any]


class DaemonLookupLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop in everything else."""

    def __init__(self) -> None:
        super().__init__()
        self._lookups: dict[object, asyncio.Future[Addresses]] = {}

    @property
    def looking_up(self) -> bool:
        """Whether a lookup is under way."""
        return bool(self._lookups)

    async def getaddrinfo(self, host: bytes | str | None, port: bytes | str | int | None, **options: int) -> Addresses:
        """As :meth:`asyncio.loop.getaddrinfo`. Whoever asks again meanwhile waits for the same answer."""
        key = (host, port, *sorted(options.items()))
        if key not in self._lookups:
            future: asyncio.Future[Addresses] = self.create_future()
            future.add_done_callback(lambda _: self._lookups.pop(key))
            self._lookups[key] = future
            look_up = threading.Thread(
                target=self._look_up, args=(future, host, port, options), name="scalescope-lookup", daemon=True
            )
            look_up.start()
        # The one who asked may give up, the lookup cannot.
        return await asyncio.shield(self._lookups[key])

    def _look_up(
        self,
        future: asyncio.Future[Addresses],
        host: bytes | str | None,
        port: bytes | str | int | None,
        options: dict[str, int],
    ) -> None:
        # RuntimeError: the loop has ended meanwhile, and nobody asks any more.
        with suppress(RuntimeError):
            try:
                found = socket.getaddrinfo(host, port, **options)
            except (OSError, UnicodeError) as error:
                self.call_soon_threadsafe(future.set_exception, error)
            else:
                self.call_soon_threadsafe(future.set_result, found)
