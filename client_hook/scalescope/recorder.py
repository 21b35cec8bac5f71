"""The hand-over from the training thread to the link's thread: bounded, and never a wait on anything slow.

The training thread puts layouts and closed updates in; the link's thread drains records out. An update's
events and sample leave at once. Its row leaves when it is *finished*: when the next update's first backward
has begun, since ``scope.log`` may add to it until then. The lock guards a few assignments, no more.

Where nobody drains, room is made: periodic samples go first, then other samples, then rows at which nothing
happened, then the oldest of all. What goes is counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from scalescope.readback import at_hand
from scalescope.telling import Teller
from scalescope.updates import Known, Measured, ScaleSet, Update
from scalescope.wire import Record

# The link empties this within milliseconds; it fills only where its thread is starved.
MAX_UPDATES = 16_384
MAX_SAMPLE_BYTES = 64 * 1024 * 1024
# Without room this part of the rows goes at once: one look over all of them in a thousand updates.
_PART_THAT_GOES = 16

_cpu_ns: Callable[[], int] = getattr(time, "thread_time_ns", int)


class Recorder:
    """See the module. ``on_news`` is called, in the training thread, after something became drainable."""

    def __init__(self, *, max_updates: int = MAX_UPDATES, max_sample_bytes: int = MAX_SAMPLE_BYTES) -> None:
        self.on_news: Callable[[], None] | None = None
        # Asked by the link's thread: the last update that nothing is added to any more, if it is known elsewhere.
        self.overtaken: Callable[[], int] | None = None
        # CPU time of the link's thread so far, in nanoseconds; 0 where the system does not tell.
        self.thread_ns = 0
        self._max_updates = max_updates
        self._max_sample_bytes = max_sample_bytes
        self._lock = threading.Lock()
        self._waiting: deque[Known | ScaleSet | Update] = deque()
        self._periodic: deque[Update] = deque()
        self._sample_bytes = 0
        self._dropped = 0
        self._finished = -1
        self._latest: Update | None = None
        # The link's thread alone uses it. What was waiting may join rows that were told but for their late values.
        self._teller = Teller(2 * max_updates)

    @property
    def dropped(self) -> int:
        """Samples and rows given up because nobody drained them, or because they could not be told."""
        return self._dropped + self._teller.failed

    def progress(self) -> tuple[int | None, float | None]:
        """The last closed update and when it closed, seconds since the epoch; None before the first."""
        latest = self._latest
        return (None, None) if latest is None else (latest.step, latest.at)

    def put_known(self, record: Known) -> None:
        """Take a record that is whole already."""
        with self._lock:
            self._waiting.append(record)
        self._tell()

    def put_scale_set(self, change: ScaleSet) -> None:
        with self._lock:
            self._waiting.append(change)
            self._make_room()

    def put(self, update: Update) -> None:
        """Take a closed update."""
        if not (update.measured or update.extras):
            self.put_plain(update)
            return
        with self._lock:
            self._sample_bytes += update.sample_bytes
            if update.periodic:
                self._periodic.append(update)
        self.put_plain(update)
        self._tell()

    def put_plain(self, update: Update) -> None:
        """The same of one at which nothing was measured: in few calls, since nearly all are such."""
        # To append takes no lock: whoever takes something away holds it.
        self._waiting.append(update)
        self._latest = update
        if len(self._waiting) > self._max_updates or self._sample_bytes > self._max_sample_bytes:
            with self._lock:
                self._make_room()

    def finish(self, step: int) -> None:
        """Nothing is added any more to the updates up to ``step``."""
        if step > self._finished:
            self._finished = step
            if self.on_news is not None:
                self.on_news()

    def finish_all(self) -> None:
        """Nothing is added any more to any update that is closed."""
        if self._latest is not None:
            self.finish(self._latest.step)

    def drain(self) -> list[Record]:
        """Everything that can be told, in causal order, sequences 0. Only the link's thread may call it."""
        records: list[Record] = []
        while (taken := self._next()) is not None:
            records += self._teller.tell(*taken)
        # The update under way when the last one closed had begun by then.
        before = -1 if self._latest is None else self._latest.step - 1
        finished = max(self._finished, before, -1 if self.overtaken is None else self.overtaken())
        records += self._teller.rows(finished)
        # No thread is told another's.
        self.thread_ns = _cpu_ns()
        return records

    def _tell(self) -> None:
        if self.on_news is not None:
            self.on_news()

    def _make_room(self) -> None:
        while self._sample_bytes > self._max_sample_bytes:
            oldest = self._periodic[0] if self._periodic else None
            self._forget(oldest or next(u for u in self._waiting if isinstance(u, Update) and _is_sampled(u)))
        if len(self._waiting) > self._max_updates:
            self._drop_rows(max(self._max_updates // _PART_THAT_GOES, 1))

    def _drop_rows(self, count: int) -> None:
        # The oldest, not the newest: a page wants to know where training is. What happened outlives what did not.
        movable = [item for item in self._waiting if not isinstance(item, Known)]
        gone = [item for item in movable if isinstance(item, Update) and _is_plain(item)][:count] or movable[:count]
        for item in gone:
            if isinstance(item, Update):
                self._forget(item)
        going = {id(item) for item in gone}
        self._waiting = deque(item for item in self._waiting if id(item) not in going)
        self._dropped += len(gone)

    def _forget(self, update: Update) -> None:
        if _is_sampled(update):
            self._forget_sample(update)
            update.extras = ()
            update.measured, update.blind = (), "the sample was dropped: the trainer could not hand it over in time"
            self._dropped += 1

    def _forget_sample(self, update: Update) -> None:
        self._sample_bytes -= update.sample_bytes
        # Updates leave in the order in which they came.
        if self._periodic and self._periodic[0] is update:
            self._periodic.popleft()

    def _next(self) -> tuple[Known | ScaleSet | Update, Sequence[Measured]] | None:
        """The oldest waiting item with its measurements, once its numbers are here; nothing overtakes it."""
        with self._lock:
            while self._waiting:
                head = self._waiting[0]
                ready = isinstance(head, Known) or self._teller.is_ready(head.ready)
                if ready is False:
                    return None
                self._waiting.popleft()
                if isinstance(head, Update):
                    self._forget_sample(head)
                if ready:
                    return head, head.measured if isinstance(head, Update) else ()
            return None


def _is_sampled(update: Update) -> bool:
    return bool(update.measured or update.extras)


def _is_plain(update: Update) -> bool:
    """Whether nothing happened at it, as far as is known without a wait: no skip, no change of the scale."""
    verdicts = [at_hand(value) for verdict in update.verdicts for value in verdict.found]
    scales = [None if value is None else at_hand(value) for value in (update.scale, update.next_scale)]
    return all(value == 0.0 for value in verdicts) and scales[0] == scales[1]
