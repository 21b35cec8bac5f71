"""The hand-over from the training thread to the link's thread: bounded, and never a wait on anything slow.

The training thread puts layouts and closed updates in; the link's thread drains records out. An update's
events and sample leave at once. Its row leaves when it is *finished*: when the next update's first backward
has begun, since ``scope.log`` may add to it until then. The lock guards a few assignments, no more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from scalescope.readback import number
from scalescope.updates import (
    Measured,
    ScaleSet,
    Update,
    events_of,
    sample_of,
    scale_set_event,
    steps_of,
    table_of,
)
from scalescope.wire import Event, Layout, Record

# The link empties this within milliseconds; it fills only where its thread is starved.
MAX_UPDATES = 16_384
MAX_SAMPLE_BYTES = 64 * 1024 * 1024
# 1,024 updates of 1,024 columns, 12 bytes each, stay under the largest frame (16 MiB).
_ROWS_PER_BATCH = 1024

_NO_LAYOUT = Layout(sequence=0, parameters=[], order="unknown", backward=[])


class Recorder:
    """See the module. ``on_news`` is called, in the training thread, after something became drainable."""

    def __init__(self, *, max_updates: int = MAX_UPDATES, max_sample_bytes: int = MAX_SAMPLE_BYTES) -> None:
        self.on_news: Callable[[], None] | None = None
        self._max_updates = max_updates
        self._max_sample_bytes = max_sample_bytes
        self._lock = threading.Lock()
        self._waiting: deque[Layout | ScaleSet | Update] = deque()
        self._periodic: deque[Update] = deque()
        self._sample_bytes = 0
        self._dropped = 0
        self._finished = -1
        self._progress: tuple[int | None, float | None] = (None, None)
        # The link's thread alone uses these three.
        self._layout = _NO_LAYOUT
        self._scale: float | None = None
        self._rows: deque[Update] = deque()

    @property
    def dropped(self) -> int:
        """Samples and rows given up because nobody drained them."""
        return self._dropped

    def progress(self) -> tuple[int | None, float | None]:
        """The last closed update and when it closed, seconds since the epoch; None before the first."""
        return self._progress

    def put_layout(self, layout: Layout) -> None:
        with self._lock:
            self._waiting.append(layout)
        self._tell()

    def put_scale_set(self, change: ScaleSet) -> None:
        with self._lock:
            self._waiting.append(change)

    def put(self, update: Update) -> None:
        """Take a closed update. Drops the oldest periodic samples, then samples, then rows to make room."""
        with self._lock:
            self._waiting.append(update)
            if update.measured:
                self._sample_bytes += update.sample_bytes
                if update.periodic:
                    self._periodic.append(update)
            if self._sample_bytes > self._max_sample_bytes or len(self._waiting) > self._max_updates:
                self._make_room()
        self._progress = (update.step, update.at)
        if update.measured:
            self._tell()

    def finish(self, step: int) -> None:
        """Nothing is added any more to the updates up to ``step``."""
        if step > self._finished:
            self._finished = step
            self._tell()

    def drain(self) -> list[Record]:
        """Everything that can be told, in causal order, sequences 0. Only the link's thread may call it."""
        records: list[Record] = []
        while (item := self._next()) is not None:
            records += self._told(item)
        while batch := self._batch():
            records.append(steps_of(batch))
        return records

    def _tell(self) -> None:
        if self.on_news is not None:
            self.on_news()

    def _make_room(self) -> None:
        while self._sample_bytes > self._max_sample_bytes:
            oldest = self._periodic.popleft() if self._periodic else None
            self._forget(oldest or next(u for u in self._waiting if isinstance(u, Update) and u.measured))
        while len(self._waiting) > self._max_updates:
            # Drop the oldest, not the newest: a page wants to know where training is.
            oldest_row = next(item for item in self._waiting if not isinstance(item, Layout))
            if isinstance(oldest_row, Update):
                self._forget(oldest_row)
            self._waiting.remove(oldest_row)
            self._dropped += 1

    def _forget(self, update: Update) -> None:
        if update.measured:
            self._sample_bytes -= update.sample_bytes
            update.measured, update.blind = (), "the sample was dropped: the trainer could not hand it over in time"
            self._dropped += 1

    def _next(self) -> tuple[Layout | ScaleSet | Update, Sequence[Measured]] | None:
        """The oldest waiting item with its measurements, once its numbers are here; nothing overtakes it."""
        with self._lock:
            head = self._waiting[0] if self._waiting else None
            if head is None or not (isinstance(head, Layout) or head.ready()):
                return None
            self._waiting.popleft()
            if not isinstance(head, Update):
                return head, ()
            self._sample_bytes -= head.sample_bytes
            if self._periodic and self._periodic[0] is head:
                self._periodic.popleft()
            return head, head.measured

    def _told(self, taken: tuple[Layout | ScaleSet | Update, Sequence[Measured]]) -> list[Record]:
        item, measured = taken
        if isinstance(item, Layout):
            self._layout = item
            return [item]
        events: list[Event]
        if isinstance(item, ScaleSet):
            events = scale_set_event(item)
            self._scale = _arrived(item) if events else self._scale
            return [*events]
        table = table_of(measured)
        records: list[Record] = [*events_of(item, self._scale, self._layout, table)]
        records += [sample_of(item, table)] if measured else []
        self._scale = _arrived(item)
        item.measured = ()
        self._rows.append(item)
        return records

    def _batch(self) -> list[Update]:
        """The oldest rows that are finished, consecutive and complete."""
        batch: list[Update] = []
        while self._rows and len(batch) < _ROWS_PER_BATCH:
            head = self._rows[0]
            follows = not batch or head.step == batch[-1].step + 1
            if head.step > self._finished or not follows or not head.row_ready():
                break
            batch.append(self._rows.popleft())
        return batch


def _arrived(item: Update | ScaleSet) -> float | None:
    return None if item.next_scale is None else number(item.next_scale)
