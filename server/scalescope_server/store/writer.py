"""The one thread that writes: everything waiting is committed in one transaction.

``append`` never blocks. When ``waiting`` jobs are queued the future has failed with :class:`Busy` before it is
handed out, so that ingest stops reading from that trainer and TCP holds it back.
What becomes of them together and alone is :mod:`group_commit`'s.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType
from scalescope.wire import Heartbeat, Hello
from sqlalchemy import Engine

from scalescope_server.store import edits
from scalescope_server.store.alert_writer import AlertWriter
from scalescope_server.store.delivery import Admission, Batch, Receipt
from scalescope_server.store.entry import enter_batch
from scalescope_server.store.erasing import doom_run, erase_piece
from scalescope_server.store.errors import Busy, Unavailable
from scalescope_server.store.group_commit import Admits, GroupCommit, Job, Work, touch
from scalescope_server.store.judging import Judged
from scalescope_server.store.leases import Claim, claim, release, renew
from scalescope_server.store.outbox_doors import OutboxWriter
from scalescope_server.store.pruning import Piece, prune_piece
from scalescope_server.store.records import RunId

# What may wait. A job is a batch of at most one connection, so this is hundreds of trainers at once.
WAITING = 256
# What one transaction takes on: more would only make the first of them wait longer for its acknowledgement.
GROUP_JOBS = 128
# Decoded: what a transaction holds in memory.
GROUP_BYTES = 128 * 1024 * 1024
Result = TypeVar("Result")


class Writer(AlertWriter, OutboxWriter):
    """Puts writes in line and hands out futures that resolve after their commit. All methods from any thread.

    Every future may fail with :class:`Busy` (the line is full, or another server holds the run), :class:`Unavailable`
    (nothing was stored, the database is locked, full, gone or newer than this program, or the store is closed) and what
    each method names.
    """

    def __init__(
        self, engine: Engine, admits: Admits, *, waiting: int = WAITING, clock: Callable[[], float] = time.time
    ) -> None:
        self._commits = GroupCommit(engine, admits, now=clock)
        self._queue: queue.Queue[Job[Any] | None] = queue.Queue(waiting)
        self._touching: Future[None] | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="scalescope-writer", daemon=True)
        self._thread.start()

    def append(self, batch: Batch) -> Future[Receipt]:
        """Store a batch; what is stored already is left alone.

        :class:`BadRecord` if a record cannot be true, :class:`Superseded` if its rank has a later connection.
        """
        run = batch.hello.run
        return self._submit(lambda transaction: enter_batch(transaction, batch), run, batch.weight, told="batch")

    def admit(self, hello: Hello, at: float) -> Future[Admission]:
        """Let a connection of a rank in, in the place of the one before; what is stored of the rank comes with it.

        Everything submitted before is stored then. :class:`BadRecord`, :class:`Gone`.
        """
        return self._submit(lambda transaction: edits.admit(transaction, hello, at), hello.run, told="hello")

    def heartbeat(self, hello: Hello, beat: Heartbeat, at: float, connection: int | None = None) -> Future[None]:
        """Enter a sign of life that came at ``at`` by our clock. :class:`Superseded`."""
        return self._submit(
            lambda t: edits.enter_heartbeat(t, hello, beat, at, connection), hello.run, told="heartbeat"
        )

    def patch_run(
        self,
        run: RunId,
        *,
        name: str | UnsetType | None = UNSET,
        tags: Sequence[str] | UnsetType | None = UNSET,
        note: str | UnsetType | None = UNSET,
        healthy: bool | UnsetType | None = UNSET,
    ) -> Future[None]:
        """Set what the user says of a run; the rest stays. :class:`NotFound` if there is no such run.

        Only ``healthy`` can be taken back, by None; the others stay as they are then.
        """
        given = {"name": name, "tags": tags if isinstance(tags, UnsetType | None) else list(tags), "note": note}
        changes: dict[str, object] = {k: value for k, value in given.items() if value not in (UNSET, None)}
        if healthy is not UNSET:
            changes["healthy"] = healthy
        return self._submit(lambda transaction: edits.patch_run(transaction.connection, run, changes), run)

    def delete_run(self, run: RunId) -> Future[None]:
        """Let a run be gone for everyone; its rows are left to :meth:`erase`. :class:`NotFound` if there is none."""
        return self._submit(lambda transaction: doom_run(transaction, run), run)

    def erase(self) -> Future[bool]:
        """Erase some of the rows of deleted runs; False where nothing is left of any."""
        return self._submit(lambda transaction: erase_piece(transaction.connection))

    def prune(self, run: RunId, start: int, before: float) -> Future[Piece]:
        """Remove what is older than ``before`` of some updates from ``start`` on. :class:`NotFound`."""
        return self._submit(lambda transaction: prune_piece(transaction, run, start, before), run)

    def commit_judgement(self, judged: Judged) -> Future[bool]:
        """Store state, watermark and findings of one pass of the judge together. :class:`NotFound`.

        False, and nothing is stored, if another server has judged the run since.
        """
        return self._submit(lambda transaction: edits.commit_judgement(transaction.connection, judged), judged.run)

    def claim(self, run: RunId, holder: str) -> Future[Claim]:
        """Ask to be the one server that judges a run. :class:`NotFound`."""
        return self._submit(lambda t: claim(t.connection, edits.run_key(t.connection, run), holder), run)

    def renew(self, run: RunId, fence: int) -> Future[bool]:
        """Keep a run for a whole term; False if another server has taken it since. :class:`NotFound`."""
        return self._submit(lambda t: renew(t.connection, edits.run_key(t.connection, run), fence), run)

    def release(self, holder: str) -> Future[None]:
        """Let other servers judge at once what ``holder`` does."""
        return self._submit(lambda transaction: release(transaction.connection, holder))

    def touch(self) -> Future[None]:
        """Write something that changes nothing, to see whether that is possible; asked again meanwhile the same."""
        if self._touching is None or self._touching.done():
            self._touching = self._submit(touch)
        return self._touching

    def trouble(self) -> str | None:
        """Why nothing can be written, by the last attempts; None where that is not known. Any thread."""
        return self._commits.trouble()

    def stored_since(self) -> float:
        """Since when whatever came was stored in time, in seconds since the epoch. Any thread."""
        return self._commits.stored_since()

    def close(self) -> None:
        """Write what is waiting, then end the thread."""
        with self._lock:
            already, self._closed = self._closed, True
        if not already:
            self._queue.put(None)
            self._thread.join()

    def _submit(
        self, work: Work[Result], run: str | None = None, size: int = 0, *, told: str | None = None
    ) -> Future[Result]:
        """Put ``work`` in line, which writes to ``run`` alone; None: to none, or to what only one server writes."""
        job = Job(work, run, size, told)
        with self._lock:
            if self._closed:
                job.future.set_exception(Unavailable("the store is closed"))
                return job.future
            try:
                self._queue.put_nowait(job)
            except queue.Full:
                job.future.set_exception(Busy(f"{self._queue.maxsize} writes are waiting"))
        return job.future

    def _run(self) -> None:
        going_on = True
        while going_on:
            group, going_on = self._next_group()
            self._commits.settle([job for job in group if job.future.set_running_or_notify_cancel()])

    def _next_group(self) -> tuple[list[Job[Any]], bool]:
        """Wait for a job and take what waits behind it; False when the line was closed."""
        group: list[Job[Any]] = []
        size = 0
        job = self._queue.get()
        while job is not None:
            group.append(job)
            size += job.size
            if len(group) == GROUP_JOBS or size >= GROUP_BYTES:
                return group, True
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return group, True
        return group, False
