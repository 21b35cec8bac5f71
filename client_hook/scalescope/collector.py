"""Takes records from the recorder, numbers and encodes them, and puts them into the outbox.

A record that no server could take costs itself alone: it is dropped and counted.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import msgspec

from scalescope.notices import Notices
from scalescope.outbox import Outbox
from scalescope.session import Frame
from scalescope.wire import MAX_FRAME_BYTES, Bye, Event, Record, Sample, encode

# More than what tells of drops, or a farewell without its detail, takes in memory.
SMALL_RECORD_BYTES = 1024


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


class Collector:
    """From ``source`` to ``outbox``. ``sendable`` is set when the outbox grew."""

    def __init__(self, source: Source, outbox: Outbox, notices: Notices, clock: Callable[[], float]) -> None:
        self.sendable = asyncio.Event()
        self._source = source
        self._outbox = outbox
        self._notices = notices
        self._clock = clock
        self._sequence = 0
        self._told_dropped: Counter[str] = Counter()

    def collect(self) -> bool:
        """Take what there is; whether there was anything."""
        records = self._source.drain()
        for record in records:
            self.put(record)
        return bool(records)

    def put(self, record: Record) -> None:
        """Give ``record`` the next number and let it wait for delivery."""
        numbered = msgspec.structs.replace(record, sequence=self._sequence)
        kind = _kind(record)
        # Whatever is dropped leaves a gap, and is counted: so what else is missing is known to be lost.
        self._sequence += 1
        try:
            data = encode(numbered)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            # A text without UTF-8, a number beyond 64 bits.
            self._notices.unsendable(kind, error)
            self._outbox.dropped[kind] += 1
            return
        if len(data) > MAX_FRAME_BYTES:
            # The server would refuse it each time, and everything behind it.
            self._outbox.dropped[kind] += 1
            return
        droppable = isinstance(record, Sample) and record.reason == "periodic"
        self._outbox.put(Frame(numbered.sequence, data, droppable), kind)
        self.sendable.set()

    def tell_dropped(self) -> None:
        """Put on record what was dropped since the last time, so that a gap is not taken for a loss."""
        if not self._outbox.dropped - self._told_dropped:
            return
        self._outbox.make_room(SMALL_RECORD_BYTES)
        new = self._outbox.dropped - self._told_dropped
        self._told_dropped = self._outbox.dropped.copy()
        step, _ = self._source.progress()
        data = json.dumps({"messages": new.total(), **new})
        self.put(Event(sequence=0, step=step or 0, at=self._clock(), kind="dropped", data=data))

    def say_goodbye(self, bye: Bye) -> None:
        """Put the last record, after which nothing more can be told: what it drops is told before it."""
        self._outbox.make_room(2 * SMALL_RECORD_BYTES + 4 * len(bye.detail))
        self.tell_dropped()
        self.put(bye)


def _kind(record: Record) -> str:
    if isinstance(record, Event) and record.kind == "dropped":
        return "dropped"
    return type(record).__name__.lower()
