"""The thread that carries records from the training to the server.

All the work is done by a :class:`Courier` on an event loop of its own; the training thread only ever calls
:meth:`Link.wake`. The thread is a daemon: a training that ends without :meth:`Link.close` loses what the
server has not acknowledged, but is never held up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from scalescope.agreement import Agreement
from scalescope.collector import Source
from scalescope.courier import Courier, Farewell, LinkStats
from scalescope.outbox import Outbox
from scalescope.resolving import DaemonLookupLoop
from scalescope.settings import Settings
from scalescope.wire import ByeReason, Hello

__all__ = ["Link", "LinkStats", "Source"]

# close() takes at most the two together: to deliver, and to hang up and write the rest to disk.
DELIVER_S = 8.0
SPILL_S = 2.0

logger = logging.getLogger("scalescope")


class Link:
    """Sends what ``source`` gives to the server of ``settings``, exactly once, until closed.

    Records wait in ``outbox``, by default one that spills to the folder of ``settings``. With an ``agreement`` they do
    until it is known to which run they belong.
    """

    def __init__(
        self,
        hello: Hello,
        settings: Settings,
        source: Source,
        *,
        agreement: Agreement | None = None,
        outbox: Outbox | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._courier = Courier(hello, settings, source, agreement=agreement, outbox=outbox, clock=clock)
        self._thread = threading.Thread(target=self._run, name="scalescope-link", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._farewell: Farewell | None = None
        self._delivered = False

    def start(self) -> None:
        """Start the thread. A process that can have no more threads is told so in a log line."""
        try:
            self._thread.start()
        except RuntimeError as error:
            logger.warning("scalescope: nothing is recorded: %s", error)

    @property
    def running(self) -> bool:
        """Whether the thread is there: it ends when it has delivered the end of the training."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """There is news to drain. From any thread; takes a few microseconds at most and never blocks."""
        # After a fork the child has our memory but not our thread: it must not touch the parent's socket.
        if self._courier.rouse() and os.getpid() == self._pid:
            self._call(self._courier.news.set)

    def finish(self, reason: ByeReason, detail: str, timeout_s: float = DELIVER_S) -> None:
        """Deliver everything and say goodbye, without a wait here. The first time counts."""
        if self._farewell is None and os.getpid() == self._pid:
            self._farewell = Farewell(reason, detail, timeout_s)
            self._call(self._ask_to_finish)

    def close(self, reason: ByeReason, detail: str, timeout_s: float = DELIVER_S) -> bool:
        """Deliver everything and say goodbye; what is not acknowledged after ``timeout_s`` goes to the spool.

        A server that could not be reached in this process is waited for only a second more, the disk two. True when
        everything is stored by the server; called again, the same answer.
        """
        if os.getpid() != self._pid or self._thread.ident is None:
            return False
        self.finish(reason, detail, timeout_s)
        self._thread.join(timeout_s + SPILL_S)
        if self._thread.is_alive():
            self._courier.run_out(timeout_s + SPILL_S)
        return self._delivered

    def release(self) -> None:
        """In a forked child: close what was inherited, so that the parent's file is free when the parent ends."""
        self._courier.release()

    @property
    def run_id(self) -> str:
        """The run's id, from any thread; "" as long as this rank does not know it."""
        return self._courier.run_id

    def stats(self) -> LinkStats:
        """Where delivery stands. From any thread."""
        return self._courier.stats()

    def _ask_to_finish(self) -> None:
        if self._farewell:
            self._courier.finish(self._farewell)

    def _call(self, function: Callable[[], None]) -> None:
        # RuntimeError: the loop has ended, and the thread with it.
        with suppress(RuntimeError):
            if self._loop:
                self._loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=DaemonLookupLoop) as runner:
                runner.run(self._work())
        except Exception as error:  # noqa: BLE001  the connection's edge: nothing may reach the training
            logger.warning("scalescope: recording has stopped: %r; the training goes on", _innermost(error))

    async def _work(self) -> None:
        self._loop = asyncio.get_running_loop()
        # close() may have come before there was a loop to tell.
        self._ask_to_finish()
        try:
            await self._courier.run()
        finally:
            everything = self._courier.settle()
            self._delivered = everything and self._farewell is not None


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
