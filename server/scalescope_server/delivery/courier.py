"""The courier: takes what is due out of the outbox and sees to it that it arrives, at least once.

It takes a message under a lease, sends it, and notes what became of it. If the server dies in between, the message is
sent again under the same key by the next one. It is woken when the judge has committed something, and looks by itself
as often as :data:`LOOK_S`, since another server may have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from scalescope_server.delivery.backoff import Backoff
from scalescope_server.delivery.grouping import plan
from scalescope_server.delivery.messages import message_of
from scalescope_server.delivery.notice import Notice
from scalescope_server.delivery.outcome import Outcome
from scalescope_server.delivery.sending import Sender
from scalescope_server.store.channels import ChannelRow
from scalescope_server.store.engine import Store
from scalescope_server.store.errors import StoreError
from scalescope_server.store.outbox import LEASE_S, Ending, Taken

LOOK_S = 1.0
# Nothing was taken that is due: it was put off, waits for room, or another server has its turn.
SOON_S = 0.1
# The database was away.
RETRY_S = 1.0
# When the server stops, what is on its way may arrive.
GRACE_S = 3.0

logger = logging.getLogger("scalescope.server")


class Courier:
    """One for each server. ``holder``: this server, among those that share the database.

    ``public_url``: where links lead. ``draw``: from [0, 1), for the waits between attempts. ``clock``: seconds that
    only go forward.
    """

    def __init__(
        self,
        store: Store,
        sender: Sender,
        *,
        holder: str,
        public_url: str | None,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._sender = sender
        self._holder = holder
        self._public_url = public_url
        self._backoff = backoff
        self._draw = draw
        self._clock = clock
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._going: dict[asyncio.Task[None], str] = {}
        self._away = False

    def wake(self) -> None:
        """Tell that something was put into the outbox. Any thread; returns at once."""
        # Read once: it may end between two looks from another thread.
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Deliver until cancelled; then what is on its way has a moment to arrive."""
        self._loop = asyncio.get_running_loop()
        try:
            # What a server of this name held when it was killed.
            while not await self._attempt(self._let_go):
                await self._rest(RETRY_S)
            while True:
                self._woken.clear()
                await self._rest(await self._round())
        finally:
            self._loop = None
            await self._stop()

    async def _round(self) -> float:
        """Take what is due; seconds until it is worth to look again."""
        wait_s = RETRY_S

        async def take() -> None:
            nonlocal wait_s
            due_in = await asyncio.to_thread(self._store.reader.deliveries_due_in)
            if due_in is None or due_in > 0:
                wait_s = LOOK_S if due_in is None else min(due_in, LOOK_S)
            else:
                wait_s = 0.0 if await self._take() else SOON_S

        await self._attempt(take)
        return wait_s

    async def _take(self) -> bool:
        # First, so that nothing is taken and then not sent since the database went away.
        channels = {row.name: row for row in await asyncio.to_thread(self._store.reader.channels)}
        planned = partial(plan, sending=Counter(self._going.values()))
        taken = await asyncio.wrap_future(self._store.writer.take_deliveries(self._holder, planned))
        for one in taken:
            task = asyncio.create_task(self._deliver(one, channels))
            self._going[task] = one.channel
            task.add_done_callback(self._ended)
        return bool(taken)

    async def _deliver(self, taken: Taken, channels: Mapping[str, ChannelRow]) -> None:
        began = self._clock()
        outcome = await self._send(taken, channels)
        ending = self._ending(taken, outcome, self._clock() - began)
        # As long as nobody else takes it for lost.
        for _ in range(int(LEASE_S / RETRY_S)):
            if await self._attempt(partial(self._settle, ending)):
                break
            await asyncio.sleep(RETRY_S)

    async def _send(self, taken: Taken, channels: Mapping[str, ChannelRow]) -> Outcome:
        if taken.attempt > self._backoff.attempts:
            return Outcome("each server that tried to send it ended before it was done", final=True)
        try:
            notices = msgspec.convert(taken.notices, list[Notice])
            message = message_of(taken.message, notices, taken.ids, self._public_url)
            return await self._sender.send(taken.channel, channels, message, taken.reached)
        except msgspec.ValidationError:
            return Outcome("another version of this server has written what this one cannot read")
        except Exception:
            logger.exception("a message to channel %r could not be sent", taken.channel)
            return Outcome("it could not be sent: the server's log says why")

    def _ending(self, taken: Taken, outcome: Outcome, took_s: float) -> Ending:
        if outcome.error is None:
            return Ending(taken.message, took_s)
        reached = taken.reached | outcome.reached
        if outcome.final or self._backoff.is_last(taken.attempt):
            logger.error("channel %r: given up after attempt %d: %s", taken.channel, taken.attempt, outcome.error)
            return Ending(taken.message, took_s, outcome.error, reached=reached)
        wait_s = self._backoff.wait_s(taken.attempt, self._draw(), outcome.retry_after_s)
        logger.warning(
            "channel %r, attempt %d: %s; again in %.0f s", taken.channel, taken.attempt, outcome.error, wait_s
        )
        return Ending(taken.message, took_s, outcome.error, wait_s, reached)

    async def _settle(self, ending: Ending) -> None:
        await asyncio.wrap_future(self._store.writer.settle_deliveries(self._holder, [ending]))

    async def _let_go(self) -> None:
        await asyncio.wrap_future(self._store.writer.let_deliveries_go(self._holder))

    async def _attempt(self, action: Callable[[], Awaitable[None]]) -> bool:
        """Whether it is done; not while the database is away, which is told once."""
        try:
            await action()
        except StoreError as error:
            if not self._away:
                logger.warning("delivery waits for the database: %s", error)
            self._away = True
            return False
        self._away = False
        return True

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._going[task]
        self._woken.set()

    async def _stop(self) -> None:
        tasks = list(self._going)
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._attempt(self._let_go)
