"""Records that the server has not acknowledged yet: in memory first, beyond that in a file, both bounded.

What is in the file is older than what is in memory, so records leave in the order in which they came. When
both are full, or the disk is, records are dropped and counted by kind: periodic samples first, since each
stands for many like it, then the oldest steps and events; a layout or a farewell last, since other records
mean little without them.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

from scalescope.session import Frame
from scalescope.spool import Header, SpoolFile
from scalescope.wire import Hello

MEMORY_BYTES = 32 * 1024 * 1024
DISK_BYTES = 256 * 1024 * 1024

# What a frame costs besides its bytes: the objects and their places in a dict and a queue.
FRAME_OVERHEAD_BYTES = 256

logger = logging.getLogger("scalescope")

_LAST_TO_DROP = frozenset({"layout", "bye", "dropped"})


class Outbox:
    """The unacknowledged records of one (server, run, segment, rank). Used by one thread only.

    ``dropped`` counts by kind; ``memory`` is in bytes; ``failure`` says why the disk takes nothing, "" where it does.
    Before the greeting is known (None) nothing goes to the disk.
    """

    def __init__(
        self,
        hello: Hello | None,
        url: str,
        folder: Path,
        *,
        memory_bytes: int = MEMORY_BYTES,
        disk_bytes: int = DISK_BYTES,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self.acknowledged = 0
        self.memory = 0
        self.failure = ""
        self._url = url
        self._hello = hello
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._disk_bytes = disk_bytes
        self._frames: dict[int, tuple[Frame, str]] = {}
        # Sequences by who is dropped first; those that have left are skipped when they come up.
        self._order: tuple[deque[int], ...] = (deque(), deque(), deque())
        self._file: SpoolFile | None = None
        self._told = False

    def belongs_to(self, hello: Hello) -> None:
        """The greeting of these records is known now."""
        self._hello = hello

    @property
    def pending(self) -> int:
        """How many records wait for their acknowledgement."""
        return len(self._frames) + self.spilled

    @property
    def spilled(self) -> int:
        """How many of them are in the file."""
        return self._file.remaining if self._file else 0

    @property
    def path(self) -> Path | None:
        """The file, if there is one."""
        return self._file.path if self._file else None

    def put(self, frame: Frame, kind: str) -> None:
        """Take a record with a sequence above all others. Spills and drops as the bounds ask; never raises."""
        self._frames[frame.sequence] = (frame, kind)
        self._order[_rank(frame, kind)].append(frame.sequence)
        self.memory += _cost(frame)
        self._shrink(self._memory_bytes)
        self._forget_departed()
        if self.failure and not self._told:
            self._tell()

    def make_room(self, size: int) -> None:
        """Spill and drop now what records of ``size`` bytes in all would: so that it can be told before they come."""
        self._shrink(max(self._memory_bytes - size, 0))
        self._forget_departed()

    def waiting(self, after: int) -> Iterator[Frame]:
        """The records above ``after``, oldest first. Take what is needed before anything else is called."""
        if self._file:
            yield from self._file.waiting(after)
        for frame, _ in self._frames.values():
            if frame.sequence > after:
                yield frame

    def acknowledge(self, durable: int) -> None:
        """Forget the records up to ``durable``."""
        if self._file:
            self.acknowledged += self._file.acknowledge(durable)
            if not self._file.remaining:
                self._file.delete()
                self._file = None
        while self._frames and (oldest := next(iter(self._frames))) <= durable:
            self._take(oldest)
            self.acknowledged += 1
        self._forget_departed()

    def spill(self) -> None:
        """Put everything into the file, as far as it goes; what does not fit is dropped and counted.

        This is the end: whoever asks for it tells of what is left, and of ``failure``.
        """
        while self._frames and self.memory > self._disk_bytes - self._on_disk:
            self._drop_one()
        self.failure = ""
        while self._frames:
            # A disk that takes nothing is not asked again for each of a hundred thousand: the end is to be soon.
            if self.failure or not self._spill_oldest():
                self._drop_one()

    def close(self) -> None:
        """Let go of the file; it stays on disk if there is anything in it."""
        if self._file and self._file.remaining:
            self._file.close()
        elif self._file:
            self._file.delete()

    def release(self) -> None:
        """Let go of the file without a look at what is in it: it is another process's."""
        if self._file:
            self._file.close()

    @property
    def _on_disk(self) -> int:
        return self._file.size if self._file else 0

    def _shrink(self, bound: int) -> None:
        while self.memory > bound and self._spill_oldest():
            pass
        while self.memory > bound:
            self._drop_one()

    def _spill_oldest(self) -> bool:
        if not self._frames or self._hello is None:
            return False
        frame, _ = next(iter(self._frames.values()))
        if self._on_disk + len(frame.data) > self._disk_bytes:
            return False
        try:
            self._file = self._file or SpoolFile.create(self._folder, Header(self._url, self._hello))
            self._file.append(frame)
        except OSError as error:
            self.failure = (error.strerror or str(error)).lower()
            return False
        self.failure = ""
        self._take(frame.sequence)
        return True

    def _drop_one(self) -> None:
        for order in self._order:
            while order:
                sequence = order.popleft()
                if sequence in self._frames:
                    _, kind = self._take(sequence)
                    self.dropped[kind] += 1
                    return

    def _take(self, sequence: int) -> tuple[Frame, str]:
        frame, kind = self._frames.pop(sequence)
        self.memory -= _cost(frame)
        return frame, kind

    def _forget_departed(self) -> None:
        for order in self._order:
            while order and order[0] not in self._frames:
                order.popleft()

    def _tell(self) -> None:
        self._told = True
        logger.warning(
            "scalescope: cannot keep undelivered data in %s (%s); the training goes on, the oldest data "
            "is dropped and counted; set SCALESCOPE_SPOOL to a folder with room",
            self._folder,
            self.failure,
        )


def _rank(frame: Frame, kind: str) -> int:
    """0 is dropped first, 2 last."""
    if frame.droppable:
        return 0
    return 2 if kind in _LAST_TO_DROP else 1


def _cost(frame: Frame) -> int:
    return len(frame.data) + FRAME_OVERHEAD_BYTES
