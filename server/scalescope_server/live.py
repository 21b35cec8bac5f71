"""News for open pages: ``WS /api/live``, one bounded queue a page, the newest of each run.

A message says *that* a run changed and its few headline numbers; the page fetches what it shows. The first
news goes out at once, then at most 20 messages a second, each the newest of its run. A page that cannot keep
up is told to fetch anew, never awaited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from scalescope.version import __version__

from scalescope_server.answers import error_answer, single
from scalescope_server.delivery.announcing import Announced
from scalescope_server.errors import NotFoundError, UnavailableError
from scalescope_server.inputs import run_of
from scalescope_server.news import Beat, Greeting, News, Page, Refetch
from scalescope_server.sockets import sending
from scalescope_server.store.delivery import Receipt
from scalescope_server.store.errors import NotFound, StoreError
from scalescope_server.store.records import RunId, RunSummary
from scalescope_server.store.telegrams import Alone, Telegram, Telegraph
from scalescope_server.tasks import first_to_end

# 20 messages a second: what an eye can follow and a phone can draw.
MESSAGE_EVERY_S = 0.05
SWEEP_EVERY_S = 1.0
MAX_PAGES = 512

logger = logging.getLogger("scalescope.server")
router = APIRouter()


_encoder = msgspec.json.Encoder()


class Hub:
    """Turns what happens to runs into news for the pages that watch them.

    Everything but :meth:`changed` belongs to the event loop's thread.
    """

    def __init__(
        self,
        latest: Callable[[RunId], Awaitable[RunSummary]],
        *,
        silent_after_s: float,
        clock: Callable[[], float],
        telegraph: Telegraph | None = None,
        announced: Callable[[RunId], Awaitable[list[Announced]]] | None = None,
    ) -> None:
        self._latest = latest
        self._announced = announced or _nothing
        self._telegraph: Telegraph = Alone() if telegraph is None else telegraph
        self._silent_after_s = silent_after_s
        self._clock = clock
        self._pages: set[Page] = set()
        self._alive: dict[RunId, float] = {}
        self._told: set[RunId] = set()
        self._dirty: dict[RunId, None] = {}
        self._unread = False
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def pages(self) -> int:
        return len(self._pages)

    def open(self, run: RunId | None) -> Page:
        """A page that is told from now on. Raises :class:`UnavailableError` when too many are open."""
        if len(self._pages) >= MAX_PAGES:
            raise UnavailableError(f"{MAX_PAGES} pages are open already: close some")
        page = Page(run)
        self._pages.add(page)
        if run is not None:
            self._mark(run)
        return page

    def close(self, page: Page) -> None:
        self._pages.discard(page)

    def greeting(self) -> Greeting:
        return Greeting(server=__version__, now=self._clock())

    def beat(self, page: Page) -> Beat:
        return Beat(now=self._clock(), last_seen_at=page.last_seen_at)

    def publish(self, receipt: Receipt) -> None:
        """Tell that a batch was committed."""
        run = receipt.run
        self.seen(run, self._clock())
        if receipt.ended:
            self._forget(run)
        self._mark(run)

    def seen(self, run: RunId, at: float) -> None:
        """Tell that a trainer of ``run`` gave a sign of life at ``at`` (seconds since the epoch)."""
        self._telegraph.tell(Telegram(run, at))
        self._saw(run, at)

    def expect(self, run: RunId, last_seen_at: float) -> None:
        """Take ``run`` for alive until it has given no sign for the time after which runs are silent."""
        self._alive[run] = max(last_seen_at, self._alive.get(run, last_seen_at))

    def changed(self, run: RunId) -> None:
        """Tell that something else about ``run`` changed: a finding, its name. Any thread; returns at once."""
        self._telegraph.tell(Telegram(run))
        # Read once: it may end between two looks from another thread.
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._mark, run)

    def gone(self, run: RunId) -> None:
        """Tell that ``run`` was deleted: whoever shows it finds nothing when it fetches anew."""
        self._telegraph.tell(Telegram(run, gone=True))
        self._end(run)

    def heard(self, telegram: Telegram) -> None:
        """Take in what happened to a run at another server."""
        if telegram.gone:
            self._end(telegram.run)
            return
        if telegram.seen_at is not None:
            self._saw(telegram.run, telegram.seen_at)
        self._mark(telegram.run)

    def followed(self) -> set[RunId]:
        """The runs that pages watch, and those that are alive."""
        return {page.run for page in self._pages if page.run is not None} | self._alive.keys()

    def shown(self) -> set[RunId]:
        """Those of them that were there when pages were last told of them."""
        self._told &= self.followed()
        return self._told

    def sweep(self) -> None:
        """Notice the runs that went silent since the last sweep."""
        now = self._clock()
        for run, at in list(self._alive.items()):
            if now - at > self._silent_after_s:
                self._forget(run)
                self._mark(run)

    async def run(self) -> None:
        """Tell and sweep until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            await first_to_end(self._tell(), self._sweep())
        finally:
            self._loop = None

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            self.sweep()

    async def _tell(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            runs, self._dirty = list(self._dirty), {}
            for run in runs:
                await self._tell_of(run)
            await asyncio.sleep(MESSAGE_EVERY_S)

    async def _tell_of(self, run: RunId) -> None:
        if not self._watching(run):
            return
        try:
            summary, alerts = await self._latest(run), await self._announced(run)
        except NotFound:
            return
        except (StoreError, UnavailableError) as error:
            # One line an outage: it is tried again at every turn.
            if not self._unread:
                logger.warning("no news for pages, of run %r first: %s", run, error)
            self._unread = True
            self._mark(run)
            return
        except Exception:
            # What is wrong with one run keeps no other's news back.
            logger.exception("no news for pages of run %r", run)
            return
        self._unread = False
        self._told.add(run)
        if summary.state == "running":
            self.expect(run, summary.last_seen_at)
        news = self._news(summary, alerts)
        for page in self._watching(run):
            page.put(news)

    def _watching(self, run: RunId) -> list[Page]:
        return [page for page in self._pages if page.wants(run)]

    def _news(self, summary: RunSummary, alerts: list[Announced]) -> News:
        return News(
            run=summary.id,
            state=summary.state,
            step=summary.last_step,
            attempted=summary.attempted,
            applied=summary.applied,
            skipped=summary.skipped,
            scale=single(summary.scale),
            at=self._clock(),
            last_seen_at=summary.last_seen_at,
            findings=summary.findings,
            worst=summary.worst,
            alerts=alerts,
        )

    def _saw(self, run: RunId, at: float) -> None:
        if run not in self._alive:
            self._mark(run)
        # Not the latest that was ever told: a clock may have been ahead.
        self._alive[run] = at
        for page in self._watching(run):
            page.saw(at)

    def _end(self, run: RunId) -> None:
        self._forget(run)
        self._told.discard(run)
        for page in self._watching(run):
            page.overflow()

    def _mark(self, run: RunId) -> None:
        self._dirty[run] = None
        self._woken.set()

    def _forget(self, run: RunId) -> None:
        self._alive.pop(run, None)


async def _nothing(_: RunId) -> list[Announced]:
    return []


@router.websocket("/api/live")
async def live(socket: WebSocket, run: str | None = None) -> None:
    """Tell one page the news of ``run``, or of every run, until it leaves."""
    rooms = socket.app.state.rooms
    hub: Hub = rooms.hub
    try:
        page = hub.open(None if run is None else run_of(run))
    except (NotFoundError, UnavailableError) as error:
        await socket.send_denial_response(error_answer(error))
        return
    try:
        await socket.accept()
        await first_to_end(_listen(socket), _talk(socket, hub, page, rooms.settings.beat_every_s))
    except (WebSocketDisconnect, TimeoutError):
        pass  # A page that leaves, or sleeps, is normal.
    finally:
        hub.close(page)


async def _listen(socket: WebSocket) -> None:
    """Until the page leaves. What it says is not asked for and not kept."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def _talk(socket: WebSocket, hub: Hub, page: Page, beat_every_s: float) -> None:
    loop = asyncio.get_running_loop()
    beat_at = loop.time() + beat_every_s
    await _send(socket, hub.greeting())
    while True:
        # Whether or not a beat is due, what waits goes out: a busy page gets both.
        told = await page.take(max(beat_at - loop.time(), 0.001))
        if told is not None:
            await _send(socket, told)
        if loop.time() >= beat_at:
            await _send(socket, hub.beat(page))
            beat_at = loop.time() + beat_every_s
        await asyncio.sleep(MESSAGE_EVERY_S)


async def _send(socket: WebSocket, message: Greeting | News | Refetch | Beat) -> None:
    async with sending(socket):
        await socket.send_text(_encoder.encode(message).decode())
