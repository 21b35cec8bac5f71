"""Between a trainer's socket and the store: what came since the last commit becomes the next batch."""

from __future__ import annotations

import asyncio

from scalescope.wire import Record

# Decoded: a batch of so much is stored in one go. One record may always go alone, however large it is.
MAX_GATHERED_BYTES = 64 * 1024 * 1024


class Gathering:
    """Records that have come and are not yet stored, bounded by what storing them takes."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._bytes = 0
        self._room = asyncio.Event()
        # Records, or the end.
        self._news = asyncio.Event()
        self._ended = False

    @property
    def is_full(self) -> bool:
        """Whether so much is gathered that no more should come."""
        return self._bytes >= MAX_GATHERED_BYTES

    async def room(self) -> None:
        """Wait until it is not full any more."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    def add(self, record: Record, weight: int) -> None:
        """Add a record of ``weight`` bytes (see ``store.weight``)."""
        self._records.append(record)
        self._bytes += weight
        self._news.set()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._news.set()

    async def take(self) -> tuple[tuple[Record, ...], int]:
        """All that has gathered, at least one record, and its weight; nothing once it has ended."""
        await self._news.wait()
        taken, weight = tuple(self._records), self._bytes
        self._records, self._bytes = [], 0
        self._room.set()
        if not self._ended:
            self._news.clear()
        return taken, weight
