"""Takes records from the recorder, numbers them, and delivers them whatever the server does.

Runs on the event loop of the link's thread. News goes out within 20 ms, the first after a silence at once; while
the server is away, records are collected less often and so in larger batches. A trouble is told in one log
line when it begins and one when it ends, whatever the number of attempts between.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shlex
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec

from scalescope.connection import TROUBLE, Connection, Peer, final_refusal, reason
from scalescope.outbox import Outbox
from scalescope.session import Frame
from scalescope.settings import Settings
from scalescope.wire import MAX_FRAME_BYTES, Bye, ByeReason, Event, Heartbeat, Hello, Record, Sample, encode

COALESCE_S = 0.02
AWAY_COALESCE_S = 0.25
# While there is news, looking every 20 ms is cheaper for the training than being woken, which costs it a system
# call an update (60 us on a busy machine, against 0.1). After so long without news we sleep until woken.
QUIET_S = 1.0
# What is measured on a device becomes drainable without anybody calling us: look now and then even so.
LOOK_S = 0.1

# Each wait is a fifth of the time the server has been away so far, so a server that comes back is found
# within a fifth of its absence (one second after five) and never later than the cap.
FIRST_RETRY_S = 0.1
RETRY_GROWTH = 1.2
RETRY_CAP_S = 15.0

# At the end: how long a server that never answered once is still waited for, and how often one is tried.
NEVER_SEEN_GRACE_S = 1.0
LAST_RETRY_S = 0.2

_MAX_DETAIL = 16_384

logger = logging.getLogger("scalescope")


class Source(Protocol):
    """Where records come from: the recorder. Called from the link's thread only."""

    def drain(self) -> list[Record]:
        """New records in causal order, with ``sequence`` 0."""
        ...

    def progress(self) -> tuple[int | None, float | None]:
        """The last closed update and when it closed."""
        ...

    @property
    def dropped(self) -> int:
        """How many records were given up before they were drained."""
        ...


@dataclass(frozen=True, slots=True)
class LinkStats:
    """Counts of records. ``sent`` counts repetitions; ``spilled`` are those of ``pending`` that are in the file."""

    sent: int
    acknowledged: int
    pending: int
    dropped: int
    spilled: int
    connected: bool


@dataclass(frozen=True, slots=True)
class Farewell:
    """How the segment ended, and how long its delivery may still take."""

    reason: ByeReason
    detail: str
    timeout_s: float


class Courier:
    """One segment's delivery. While ``asleep``, it looks for news soon only if ``news`` is set."""

    def __init__(
        self,
        hello: Hello,
        settings: Settings,
        source: Source,
        *,
        outbox: Outbox | None = None,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.news = asyncio.Event()
        self.asleep = False
        self._hello = hello
        self._peer = Peer(settings.url, settings.token)
        self._source = source
        self._clock = clock
        self._jitter = jitter
        self._outbox = outbox or Outbox(hello, settings.url, settings.spool)
        self._sequence = 0
        self._told_dropped: Counter[str] = Counter()
        self._connection: Connection | None = None
        self._sent_before = 0
        self._seen = False
        self._in_trouble = False
        self._farewell: Farewell | None = None
        self._said_goodbye = False
        self._over = False
        self._sendable = asyncio.Event()
        self._finishing = asyncio.Event()
        self._settled = asyncio.Event()

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
        self._finishing.set()

    def settle(self) -> bool:
        """After :meth:`run`: put what is left on disk. True when nothing was left."""
        left = self._outbox.pending
        if left:
            self._outbox.spill()
            self._tell_left(left)
        self._outbox.close()
        return left == 0

    def stats(self) -> LinkStats:
        connection = self._connection
        return LinkStats(
            sent=self._sent_before + (connection.sent if connection else 0),
            acknowledged=self._outbox.acknowledged,
            pending=self._outbox.pending,
            dropped=self._outbox.dropped.total() + self._source.dropped,
            spilled=self._outbox.spilled,
            connected=connection is not None and connection.open,
        )

    async def _collect_news(self) -> None:
        loop = asyncio.get_running_loop()
        busy_at = loop.time()
        while True:
            self.news.clear()
            # Before the look, so that news which comes during it wakes us again.
            self.asleep = loop.time() - busy_at > QUIET_S
            if self._collect():
                busy_at = loop.time()
            if not self.asleep:
                await asyncio.sleep(AWAY_COALESCE_S if self._in_trouble else COALESCE_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self.news.wait()

    def _collect(self) -> bool:
        records = self._source.drain()
        for record in records:
            self._put(record)
        return bool(records)

    def _put(self, record: Record) -> None:
        numbered = msgspec.structs.replace(record, sequence=self._sequence)
        self._sequence += 1
        data, kind = encode(numbered), _kind(record)
        if len(data) > MAX_FRAME_BYTES:
            # The server would refuse it each time, and everything behind it.
            self._outbox.dropped[kind] += 1
            return
        droppable = isinstance(record, Sample) and record.reason == "periodic"
        self._outbox.put(Frame(numbered.sequence, data, droppable), kind)
        self._sendable.set()

    async def _keep_talking(self) -> None:
        failures = 0
        while True:
            connection = Connection(
                self._hello, self._outbox, self._sendable, heartbeat=self._heartbeat, on_change=self._on_change
            )
            trouble = await self._talk(connection)
            if self._over:
                # A task group that fails while it is being cancelled tells of the failure alone.
                return
            if advice := final_refusal(trouble):
                self._give_up(trouble, advice)
                return
            self._tell_trouble(trouble)
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
        self._collect()
        self._tell_dropped()
        detail = self._farewell.detail[:_MAX_DETAIL]
        self._put(Bye(sequence=0, at=self._clock(), reason=self._farewell.reason, detail=detail))
        self._said_goodbye = True
        limit = self._farewell.timeout_s
        with suppress(TimeoutError):
            async with asyncio.timeout(limit if self._seen else min(limit, NEVER_SEEN_GRACE_S)):
                await self._settled.wait()

    def _on_change(self) -> None:
        """The server has answered."""
        self._seen = True
        if self._in_trouble:
            self._in_trouble = False
            logger.warning("scalescope: %s answers again; what was kept is being sent", self._peer.url)
        if not self._said_goodbye:
            self._tell_dropped()
        elif self._outbox.pending == 0:
            self._settled.set()

    def _tell_dropped(self) -> None:
        """Put on record what was dropped since the last time, so that a gap is not taken for a loss."""
        new = self._outbox.dropped - self._told_dropped
        if new:
            self._told_dropped = self._outbox.dropped.copy()
            step, _ = self._source.progress()
            data = json.dumps({"messages": new.total(), **new})
            self._put(Event(sequence=0, step=step or 0, at=self._clock(), kind="dropped", data=data))

    def _heartbeat(self) -> Heartbeat:
        step, progress_at = self._source.progress()
        stats = self.stats()
        return Heartbeat(
            at=self._clock(), step=step, progress_at=progress_at, pending=stats.pending, dropped=stats.dropped
        )

    def _give_up(self, refusal: BaseException, advice: str) -> None:
        logger.warning(
            "scalescope: %s refuses this run: %s; %s; the training goes on and its data is kept",
            self._peer.url,
            reason(refusal),
            advice,
        )
        self._settled.set()

    def _tell_trouble(self, trouble: BaseException) -> None:
        if self._in_trouble:
            return
        self._in_trouble = True
        # A warning in both directions: who has read the first wants to read the second.
        logger.warning(
            "scalescope: no connection to %s (%s); the training goes on, its data is kept and sent later",
            self._peer.url,
            reason(trouble),
        )

    def _tell_left(self, left: int) -> None:
        kept, path = self._outbox.spilled, self._outbox.path
        where = (
            f"kept in {path}, deliver them with: scalescope push {shlex.quote(str(path.parent))}"
            if path
            else "nothing is kept"
        )
        lost = f" ({left - kept} had no room and are lost)" if left > kept else ""
        logger.warning("scalescope: %d records were not delivered to %s: %s%s", left, self._peer.url, where, lost)


def retry_delay(failures: int, jitter: float) -> float:
    """Seconds to wait after so many failed attempts in a row; ``jitter`` in [0, 1) takes off up to a quarter.

    The jitter keeps a thousand ranks from knocking at the same moment.
    """
    grown = FIRST_RETRY_S * RETRY_GROWTH ** min(failures, 100)
    return min(grown, RETRY_CAP_S) * (1 - jitter / 4)


def _kind(record: Record) -> str:
    if isinstance(record, Event) and record.kind == "dropped":
        return "dropped"
    return type(record).__name__.lower()
