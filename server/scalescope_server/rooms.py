"""What the rooms of one running server share, handed to each request through ``app.state.rooms``."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, ParamSpec, TypeVar

from fastapi import Depends
from starlette.requests import HTTPConnection

from scalescope_server.delivery.sending import Sender
from scalescope_server.errors import UnavailableError
from scalescope_server.judge import Judge
from scalescope_server.live import Hub
from scalescope_server.metrics import Metrics
from scalescope_server.settings import Settings
from scalescope_server.store.engine import Store
from scalescope_server.store.telegrams import Telegraph
from scalescope_server.upkeep import Upkeep

# Reads beyond this many would wait longer than anyone looks at a page.
MAX_WAITING_READS = 256
CROWDED = "the database answers too slowly: too many requests are waiting for it"

Answer = TypeVar("Answer")
Inputs = ParamSpec("Inputs")


class ReadingRoom:
    """A few threads in which the store's synchronous reads run, so that the event loop never waits for one.

    ``waiting``: reads that have not ended, asked for still or not; ``most_waiting`` at most, and ``crowded`` says so.
    """

    def __init__(self, threads: int, most_waiting: int = MAX_WAITING_READS, crowded: str = CROWDED) -> None:
        self._most_waiting = most_waiting
        self._crowded = crowded
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="scalescope-read")
        self.waiting = 0
        self._lock = threading.Lock()

    async def read(self, call: Callable[Inputs, Answer], /, *arguments: Inputs.args, **named: Inputs.kwargs) -> Answer:
        """What ``call`` returns.

        Raises:
            UnavailableError: at once, when too many reads are waiting for the database already.
        """
        if self.waiting >= self._most_waiting:
            raise UnavailableError(self._crowded)
        job = self._pool.submit(functools.partial(call, *arguments, **named))
        with self._lock:
            self.waiting += 1
        # Counted until the job ends, not until its caller gives up: it goes on without one.
        job.add_done_callback(self._ended)
        return await asyncio.wrap_future(job)

    def _ended(self, _: Future[Any]) -> None:
        with self._lock:
            self.waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Rooms:
    """One server's parts. ``clock`` gives seconds since the epoch. ``telling`` brings news to pages,
    ``delivering`` alerts to channels.

    ``monitoring`` is a reading room of its own: who asks whether the server is well does not wait behind pages.
    ``trying`` is another, of one thread: who tries rules on millions of updates keeps nobody from reading.
    """

    settings: Settings
    store: Store
    hub: Hub
    judge: Judge
    reading: ReadingRoom
    monitoring: ReadingRoom
    trying: ReadingRoom
    metrics: Metrics
    clock: Callable[[], float]
    telegraph: Telegraph
    telling: asyncio.Task[None]
    upkeep: Upkeep
    sender: Sender
    delivering: asyncio.Task[None]


def rooms_of(connection: HTTPConnection) -> Rooms:
    """The rooms of the server that answers ``connection``, a request or a WebSocket."""
    found = connection.app.state.rooms
    assert isinstance(found, Rooms)
    return found


RoomsHere = Annotated[Rooms, Depends(rooms_of)]
