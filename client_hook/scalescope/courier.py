"""Delivers what the recorder has, whatever the server does, until the training says farewell.

Runs on the event loop of the link's thread. News goes out within 200 ms, the first after a silence at once; while
the server is away, records are collected less often and so in larger batches.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from scalescope.agreement import Agreement
from scalescope.collector import Collector, Source
from scalescope.connection import TROUBLE, Connection, Peer, Rivalry, final_refusal
from scalescope.notices import Notices
from scalescope.outbox import Outbox
from scalescope.pace import LATEST_S, Pace
from scalescope.resolving import DaemonLookupLoop
from scalescope.retrying import retry_delay
from scalescope.settings import Settings
from scalescope.wire import Bye, ByeReason, Heartbeat, Hello

# After so long without news we sleep until woken.
QUIET_S = 1.0

# At the end: how long a server that has only ever refused is still waited for, and how often one is tried.
NEVER_SEEN_GRACE_S = 1.0
LAST_RETRY_S = 0.2

_MAX_DETAIL = 16_384


@dataclass(frozen=True, slots=True)
class LinkStats:
    """Counts of records. ``sent`` counts repetitions; ``spilled`` are those of ``pending`` that are in the file.

    ``sent_bytes`` are those of all messages; ``thread_cpu_s`` is the CPU time of the link's thread so far, in seconds.
    """

    sent: int
    acknowledged: int
    pending: int
    dropped: int
    spilled: int
    connected: bool
    sent_bytes: int
    thread_cpu_s: float | None


@dataclass(frozen=True, slots=True)
class Farewell:
    """How the segment ended, and how long its delivery may still take."""

    reason: ByeReason
    detail: str
    timeout_s: float


class Courier:
    """One segment's delivery. While it sleeps, it looks for news soon only if ``news`` is set.

    With an ``agreement`` the ``hello`` is only proposed, and nobody is spoken to before it is agreed upon.
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
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.news = asyncio.Event()
        self._asleep = False
        self._agreement = agreement
        self._hello = hello
        self._agreed = agreement is None or hello.rank == 0
        self._peer = Peer(settings.url, settings.token)
        self._source = source
        self._clock = clock
        self._jitter = jitter
        self._outbox = outbox or Outbox(hello if self._agreed else None, settings.url, settings.spool)
        self._notices = Notices(settings.url)
        self._collector = Collector(source, self._outbox, self._notices, clock)
        self._connection: Connection | None = None
        self._sent_before = self._bytes_before = 0
        self._cpu_s: float | None = None
        self._seen = False
        self._farewell: Farewell | None = None
        self._said_goodbye = False
        self._patience: asyncio.Timeout | None = None
        self._over = False
        self._finishing = asyncio.Event()
        self._settled = asyncio.Event()

    @property
    def run_id(self) -> str:
        """The run's id, from any thread; "" as long as this rank does not know it."""
        return self._hello.run if self._agreed or self._hello.resumed else ""

    def rouse(self) -> bool:
        """Whether ``news`` is to be set for it to look: once a sleep. From any thread, in less than a microsecond."""
        asleep, self._asleep = self._asleep, False
        return asleep

    async def run(self) -> None:
        """Deliver until :meth:`finish`, then until everything is acknowledged or time is up."""
        async with asyncio.TaskGroup() as group:
            collecting = group.create_task(self._collect_news())
            talking = group.create_task(self._keep_talking())
            await self._finishing.wait()
            collecting.cancel()
            await self._say_goodbye()
            self._over = True
            talking.cancel()

    def finish(self, farewell: Farewell) -> None:
        """Ask :meth:`run` to end. In the loop's thread only."""
        self._farewell = farewell
        if self._agreement is not None:
            self._agreement.hasten()
        self._finishing.set()

    def settle(self) -> bool:
        """After :meth:`run`: put what is left on disk. True when nothing was left."""
        self._asleep = False
        if self._agreement is not None:
            self._agreement.end()
        self._note_cpu()
        left = self._outbox.pending
        if left:
            self._outbox.belongs_to(self._hello)
            self._outbox.spill()
            self._notices.left(left, self._outbox)
        self._outbox.close()
        return left == 0

    def run_out(self, within_s: float) -> None:
        """Say that :meth:`run` and :meth:`settle` did not end in time. From any thread."""
        self._notices.unfinished(within_s, self._outbox.pending)

    def release(self) -> None:
        """Let go of the file, which another process goes on writing."""
        self._outbox.release()

    def stats(self) -> LinkStats:
        connection = self._connection
        return LinkStats(
            sent=self._sent_before + (connection.sent if connection else 0),
            acknowledged=self._outbox.acknowledged,
            pending=self._outbox.pending,
            dropped=self._outbox.dropped.total() + self._source.dropped,
            spilled=self._outbox.spilled,
            connected=connection is not None and connection.open,
            sent_bytes=self._bytes_before + (connection.sent_bytes if connection else 0),
            thread_cpu_s=self._cpu_s,
        )

    async def _collect_news(self) -> None:
        loop = asyncio.get_running_loop()
        pace, busy_at = Pace(), loop.time()
        while True:
            self.news.clear()
            # Before the look, so that news which comes during it wakes us again.
            self._asleep = asleep = loop.time() - busy_at > QUIET_S
            found = self._collector.collect()
            busy_at = loop.time() if found else busy_at
            self._note_cpu()
            wait_s = pace.wait_s(found=found, away=self._notices.in_trouble, cpu_s=self._cpu_s)
            if not asleep:
                await asyncio.sleep(wait_s)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(LATEST_S):
                    await self.news.wait()

    async def _keep_talking(self) -> None:
        if self._agreement is not None:
            self._hello = await self._agreement.greeting(self._hello)
            self._outbox.belongs_to(self._hello)
            self._agreed = True
        failures, rivalry = 0, Rivalry()
        while True:
            sendable = self._collector.sendable
            connection = Connection(
                self._hello, self._outbox, sendable, heartbeat=self._heartbeat, on_change=self._on_change
            )
            trouble = await self._talk(connection)
            if self._over:
                # A task group that fails while it is being cancelled tells of the failure alone.
                return
            advice = final_refusal(trouble)
            if advice and not rivalry.goes_on(trouble, asyncio.get_running_loop().time()):
                self._notices.refused(trouble, advice)
                self._settled.set()
                return
            self._notices.trouble(trouble)
            self._lose_patience()
            failures = 0 if connection.acknowledgements else failures + 1
            await self._pause(retry_delay(failures, self._jitter()))

    async def _talk(self, connection: Connection) -> BaseException:
        """Why the connection ended."""
        self._connection = connection
        trouble: BaseException = ConnectionError("the connection ended")
        try:
            await connection.run(self._peer)
        except* TROUBLE as group:
            trouble = group.exceptions[0]
        self._sent_before += connection.sent
        self._bytes_before += connection.sent_bytes
        self._connection = None
        return trouble

    async def _pause(self, delay_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._finishing.wait()
                await asyncio.sleep(LAST_RETRY_S)

    async def _say_goodbye(self) -> None:
        if self._farewell is None:
            return
        farewell = self._farewell
        self._collector.collect()
        detail = farewell.detail[:_MAX_DETAIL]
        self._collector.say_goodbye(Bye(sequence=0, at=self._clock(), reason=farewell.reason, detail=detail))
        self._said_goodbye = True
        with suppress(TimeoutError):
            async with asyncio.timeout(farewell.timeout_s) as self._patience:
                loop = asyncio.get_running_loop()
                if self._notices.in_trouble or (isinstance(loop, DaemonLookupLoop) and loop.looking_up):
                    self._lose_patience()
                await self._settled.wait()
                if self._connection is not None:
                    # What it took in all: the last sign of life came before the last records.
                    await self._connection.beat()

    def _lose_patience(self) -> None:
        """There is no way to the server. Where there never was one, the end is not held up for the next attempts."""
        patience = self._patience
        if patience is None or self._seen:
            return
        end, soon = patience.when(), asyncio.get_running_loop().time() + NEVER_SEEN_GRACE_S
        if end is not None and soon < end and not patience.expired():
            patience.reschedule(soon)

    def _on_change(self) -> None:
        """The server has answered."""
        self._seen = True
        connection = self._connection
        # One that greets and takes nothing is still in trouble: else each attempt would be two log lines.
        if (connection and connection.acknowledgements) or not self._outbox.pending:
            self._notices.answered()
        if not self._said_goodbye:
            self._collector.tell_dropped()
        elif self._outbox.pending == 0:
            self._settled.set()

    def _heartbeat(self) -> Heartbeat:
        self._note_cpu()
        step, progress_at = self._source.progress()
        stats = self.stats()
        now = asyncio.get_running_loop().time()
        self._notices.look(acknowledged=stats.acknowledged, pending=stats.pending, now=now)
        return Heartbeat(
            at=self._clock(),
            step=step,
            progress_at=progress_at,
            pending=stats.pending,
            dropped=stats.dropped,
            sent_bytes=stats.sent_bytes,
            thread_cpu_s=stats.thread_cpu_s,
        )

    def _note_cpu(self) -> None:
        # Not every system tells it, and none tells it to another thread.
        if hasattr(time, "thread_time"):
            self._cpu_s = time.thread_time()
