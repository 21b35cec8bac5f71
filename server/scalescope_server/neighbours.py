"""What other servers on the same database do: heard of by telegraph, and looked for every second.

The looking is for what was not told: by a server that was killed between a commit and its telegram, or while the
telegraph's connection is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Protocol

from scalescope_server.errors import UnavailableError
from scalescope_server.store.errors import StoreError
from scalescope_server.store.marks import Mark
from scalescope_server.store.records import RunId
from scalescope_server.store.telegrams import Telegram, Telegraph

LOOK_EVERY_S = 1.0

Marks = Callable[[Collection[RunId]], Awaitable[Mapping[RunId, Mark]]]


class Listener(Protocol):
    """Whoever shows runs. In the event loop's thread."""

    def heard(self, telegram: Telegram) -> None: ...

    def followed(self) -> AbstractSet[RunId]:
        """The runs that it shows or that are alive."""

    def shown(self) -> AbstractSet[RunId]:
        """Those of them that were there when it last told of them."""


class Judging(Protocol):
    """Whoever judges runs. Any thread."""

    def hear(self, run: RunId) -> None: ...


class Neighbours:
    """Passes on to ``listener`` and ``judge`` what other servers do. ``marks`` reads how far the runs have come."""

    def __init__(
        self,
        telegraph: Telegraph,
        listener: Listener,
        judge: Judging,
        marks: Marks,
        *,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._look_every_s = look_every_s
        self._telegraph = telegraph
        self._listener = listener
        self._judge = judge
        self._marks = marks

    async def run(self) -> None:
        """Hear and look until cancelled."""
        loop = asyncio.get_running_loop()

        def heard(telegrams: Sequence[Telegram]) -> None:
            # The loop may have ended before the telegraph does.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._pass_on, telegrams)

        self._telegraph.start(heard)
        try:
            await self._look()
        finally:
            await asyncio.to_thread(self._telegraph.stop)

    def _pass_on(self, telegrams: Sequence[Telegram]) -> None:
        for telegram in telegrams:
            self._listener.heard(telegram)
            if not telegram.gone:
                self._judge.hear(telegram.run)

    def _compare(
        self, known: Mapping[RunId, Mark] | None, found: Mapping[RunId, Mark], shown: Collection[RunId]
    ) -> None:
        for telegram in () if known is None else changes(known, found, shown):
            self._listener.heard(telegram)
        for run, mark in found.items():
            # Again and again, until somebody has judged it.
            if mark.attempted != (mark.judged or 0):
                self._judge.hear(run)

    async def _look(self) -> None:
        known: Mapping[RunId, Mark] | None = None
        while True:
            with suppress(StoreError, UnavailableError):
                # Told of by what its own judge found, a run may end before any look has seen it.
                asked = self._listener.followed()
                shown = (asked & (known or {}).keys()) | self._listener.shown()
                found = await self._marks(asked | shown)
                self._compare(known, found, shown)
                known = found
            await asyncio.sleep(self._look_every_s)


def changes(before: Mapping[RunId, Mark], now: Mapping[RunId, Mark], shown: Collection[RunId]) -> list[Telegram]:
    """What a telegraph would have told between two looks, at the second of which ``shown`` were looked for."""
    new = [Telegram(run, mark.seen_at) for run, mark in now.items() if before.get(run) != mark]
    return new + [Telegram(run, gone=True) for run in shown if run not in now]
