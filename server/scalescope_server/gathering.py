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
        self._changed = asyncio.Condition()
        self._ended = False

    async def add(self, record: Record, weight: int) -> None:
        """Add a record of ``weight`` bytes (see ``store.weight``); waits while too much is gathered."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._bytes < MAX_GATHERED_BYTES)
            self._records.append(record)
            self._bytes += weight
            self._changed.notify_all()

    async def end(self) -> None:
        """Nothing more will come."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def take(self) -> tuple[tuple[Record, ...], int]:
        """All that has gathered, at least one record, and its weight; nothing once it has ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._records) or self._ended)
            taken, weight = tuple(self._records), self._bytes
            self._records, self._bytes = [], 0
            self._changed.notify_all()
            return taken, weight
