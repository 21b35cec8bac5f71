"""What open pages are told, and what waits to be told to each: at most the newest of every run."""

from __future__ import annotations

import asyncio

import msgspec

from scalescope_server.delivery.announcing import Announced
from scalescope_server.store.records import RunId, RunState, Single

# More changed runs than this on one screen are fetched at once rather than told one by one.
MAX_RUNS_WAITING = 64


class Greeting(msgspec.Struct, tag_field="type", tag="hello", frozen=True):
    """The first message: the server's version and its clock (seconds since the epoch)."""

    server: str
    now: float


class News(msgspec.Struct, tag_field="type", tag="news", frozen=True, kw_only=True):
    """A run as it stands. ``step``: the last stored update, null for none; ``at``: when this was read.

    ``alerts``: what is told of its alerts, the newest first, for a minute: it is in all news of that time.
    """

    run: str
    state: RunState
    step: int | None
    attempted: int
    applied: int
    skipped: int
    scale: Single
    at: float
    last_seen_at: float
    findings: dict[str, int]
    worst: str | None
    alerts: list[Announced] = []


class Refetch(msgspec.Struct, tag_field="type", tag="refetch", frozen=True):
    """More happened than could be told one by one."""


class Beat(msgspec.Struct, tag_field="type", tag="beat", frozen=True):
    """The connection lives. ``last_seen_at``: the last sign of life of what the page watches, if any."""

    now: float
    last_seen_at: float | None


Told = News | Refetch


class Page:
    """What waits to be told to one open page, watching ``run`` or (None) every run."""

    def __init__(self, run: RunId | None) -> None:
        self.run = run
        self.last_seen_at: float | None = None
        self._news: dict[str, News] = {}
        self._overflowed = False
        self._filled = asyncio.Event()

    def wants(self, run: RunId) -> bool:
        return self.run is None or self.run == run

    def saw(self, at: float) -> None:
        """What the page watches gave a sign of life at ``at``."""
        self.last_seen_at = at if self.last_seen_at is None else max(at, self.last_seen_at)

    def put(self, news: News) -> None:
        """Let ``news`` replace what waits of the same run."""
        self.saw(news.last_seen_at)
        if len(self._news) >= MAX_RUNS_WAITING and news.run not in self._news:
            self.overflow()
        if not self._overflowed:
            self._news[news.run] = news
        self._filled.set()

    def overflow(self) -> None:
        """Let the page fetch anew instead of telling it what waits."""
        self._news.clear()
        self._overflowed = True
        self._filled.set()

    async def take(self, within_s: float) -> Told | None:
        """What waited longest, None if nothing came within ``within_s`` seconds."""
        try:
            async with asyncio.timeout(within_s):
                await self._filled.wait()
        except TimeoutError:
            return None
        if self._overflowed:
            self._overflowed = False
            told: Told = Refetch()
        else:
            told = self._news.pop(next(iter(self._news)))
        if not self._news:
            self._filled.clear()
        return told
