"""Between a trainer's socket and the store: what came since the last commit becomes the next batch."""

from __future__ import annotations

import asyncio

from scalescope.session import WINDOW_BYTES
from scalescope.wire import Record

# A trainer of ours never has more than one window on its way, so only others are ever made to wait.
MAX_GATHERED_BYTES = 2 * WINDOW_BYTES


class Gathering:
    """Records that have come and are not yet stored, bounded in bytes."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._bytes = 0
        self._changed = asyncio.Condition()
        self._ended = False

    async def add(self, record: Record, size: int) -> None:
        """Add a record; waits while too much is gathered."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._bytes < MAX_GATHERED_BYTES)
            self._records.append(record)
            self._bytes += size
            self._changed.notify_all()

    async def end(self) -> None:
        """Nothing more will come."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def take(self) -> tuple[tuple[Record, ...], int]:
        """All that has gathered, at least one record, and its size; nothing once it has ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._records) or self._ended)
            taken, size = tuple(self._records), self._bytes
            self._records, self._bytes = [], 0
            self._changed.notify_all()
            return taken, size
