"""From updates to records, in the link's thread: what happened at each, its sample, and rows folded into batches.

An update that cannot be told is counted and told about once; the others are not held up by it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from scalescope.events import events_of, scale_set_event
from scalescope.readback import number
from scalescope.updates import (
    Known,
    Measured,
    ScaleSet,
    Update,
    sample_of,
    steps_of,
    table_of,
)
from scalescope.wire import Layout, Record

# 1,024 updates of 1,024 columns, 12 bytes each, stay under the largest frame (16 MiB).
_ROWS_PER_BATCH = 1024

_NO_LAYOUT = Layout(sequence=0, parameters=[], order="unknown", backward=[])

logger = logging.getLogger("scalescope")


class Teller:
    """Takes updates in order. ``failed`` counts what could not be told, or had to go for want of room."""

    def __init__(self, max_rows: int) -> None:
        self.failed = 0
        self._max_rows = max_rows
        self._reported = False
        self._layout = _NO_LAYOUT
        self._rows: deque[Update] = deque()
        # The step told last and the scale after it, None where that is not known.
        self._last = -1
        self._scale: float | None = None

    def is_ready(self, check: Callable[[], bool]) -> bool | None:
        """What ``check`` says; None where asking fails, as it does for every number of a device that has failed."""
        try:
            return check()
        except Exception as error:  # noqa: BLE001 - a tap: what can never be read must not hold up what follows
            self._report(error)
            return None

    def tell(self, item: Known | ScaleSet | Update, measured: Sequence[Measured]) -> list[Record]:
        """The records of ``item``, whose numbers are here. An update's row follows when it is finished."""
        if isinstance(item, Known):
            self._layout = item if isinstance(item, Layout) else self._layout
            return [item]
        if isinstance(item, ScaleSet):
            return self._guarded(self._tell_change, item)
        try:
            return self._guarded(self._tell_update, item, measured)
        finally:
            item.measured = item.extras = ()
            self._rows.append(item)
            if len(self._rows) > self._max_rows:
                self._rows.popleft()
                self.failed += 1

    def rows(self, finished: int) -> list[Record]:
        """The rows up to step ``finished`` that are complete, in batches of consecutive ones."""
        records: list[Record] = []
        while batch := self._batch(finished):
            told = self._guarded(_steps, batch)
            # One that cannot be told must not take a thousand others with it.
            records += told or [record for row in batch for record in self._guarded(_steps, [row])]
        return records

    def _tell_change(self, change: ScaleSet) -> list[Record]:
        events = scale_set_event(change)
        self._scale = _arrived(change) if events else self._scale
        return [*events]

    def _tell_update(self, update: Update, measured: Sequence[Measured]) -> list[Record]:
        # After a gap nobody knows what the scale was set to in it, nor by whom.
        before = self._scale if update.step == self._last + 1 else None
        self._last, self._scale = update.step, None
        table = table_of(measured)
        records: list[Record] = [*events_of(update, before, self._layout, table)]
        records += [sample_of(update, table)] if measured else []
        records += [record for extra in update.extras for record in extra.records(update)]
        self._scale = _arrived(update)
        return records

    def _batch(self, finished: int) -> list[Update]:
        batch: list[Update] = []
        while self._rows and len(batch) < _ROWS_PER_BATCH:
            head = self._rows[0]
            follows = not batch or head.step == batch[-1].step + 1
            if head.step > finished or not follows:
                break
            complete = self.is_ready(head.row_ready)
            if complete is False:
                break
            self._rows.popleft()
            if complete:
                self._guarded(_finish, head)
                batch.append(head)
        return batch

    def _guarded(self, tell: Callable[..., list[Record]], *told: object) -> list[Record]:
        try:
            return tell(*told)
        except Exception as error:  # noqa: BLE001 - a tap: one update that cannot be told must not end the recording
            self._report(error)
            return []

    def _report(self, error: Exception) -> None:
        self.failed += 1
        if not self._reported:
            self._reported = True
            logger.warning("scalescope: an update cannot be told; later ones are only counted", exc_info=error)


def _finish(update: Update) -> list[Record]:
    if update.schedules is not None:
        update.schedules.finish(update)
    return []


def _steps(updates: Sequence[Update]) -> list[Record]:
    return [steps_of(updates)]


def _arrived(item: Update | ScaleSet) -> float | None:
    return None if item.next_scale is None else number(item.next_scale)
