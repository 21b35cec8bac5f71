"""The one thread that writes: everything waiting is committed in one transaction.

``append`` never blocks. When ``waiting`` jobs are queued the future has failed with :class:`Busy` before it is
handed out, so that ingest stops reading from that trainer and TCP holds it back.

A transaction either commits whole or not at all. Where it fails because of what one job brought, each of its
jobs is committed alone, so that only the faulty one fails; where the database itself fails, all of them do, and
nothing of them is stored. Where it met another server's on Postgres, it is run again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from msgspec import UNSET, UnsetType
from scalescope.wire import Heartbeat, Hello
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from scalescope_server.store import edits
from scalescope_server.store.delivery import Admission, Batch, Receipt
from scalescope_server.store.entry import enter_batch
from scalescope_server.store.erasing import doom_run, erase_piece
from scalescope_server.store.errors import BadRecord, Busy, Unavailable
from scalescope_server.store.judging import Judged
from scalescope_server.store.leases import Claim, claim, release
from scalescope_server.store.outages import is_meeting, is_of_values, outage, reason
from scalescope_server.store.pruning import Piece, prune_piece
from scalescope_server.store.records import RunId
from scalescope_server.store.transaction import Transaction

# What may wait. A job is a batch of at most one connection, so this is hundreds of trainers at once.
WAITING = 256
# What one transaction takes on: more would only make the first of them wait longer for its acknowledgement.
GROUP_JOBS = 128
# Decoded: what a transaction holds in memory.
GROUP_BYTES = 128 * 1024 * 1024
# Servers hold runs in one order and meet seldom: over a run that is new to both of them.
MEETINGS = 4

Result = TypeVar("Result")
Work = Callable[[Transaction], Result]


@dataclass(frozen=True, slots=True, eq=False)
class _Job(Generic[Result]):
    work: Work[Result]
    run: str | None
    size: int
    # What a trainer told, whose values may be such as no database holds; None for what did not come from one.
    told: str | None = None
    future: Future[Result] = field(default_factory=Future)


@dataclass(slots=True)
class _Attempt:
    """Runs a block and keeps its failure: those who wait for the result get it, not the writer's thread."""

    error: Exception | None = None
    met: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self.error = outage(error) or error
            self.met = is_meeting(error)
        return self.error is not None


class Writer:
    """Puts writes in line and hands out futures that resolve after their commit. All methods from any thread.

    Every future may fail with :class:`Busy` (the line is full), :class:`Unavailable` (nothing was stored, the
    database is locked, full or gone, or the store is closed) and what each method names.
    """

    def __init__(self, engine: Engine, *, waiting: int = WAITING) -> None:
        self._engine = engine
        self._queue: queue.Queue[_Job[Any] | None] = queue.Queue(waiting)
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

    def release(self, holder: str) -> Future[None]:
        """Let other servers judge at once what ``holder`` does."""
        return self._submit(lambda transaction: release(transaction.connection, holder))

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
        job = _Job(work, run, size, told)
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
            self._settle([job for job in group if job.future.set_running_or_notify_cancel()])

    def _next_group(self) -> tuple[list[_Job[Any]], bool]:
        """Wait for a job and take what waits behind it; False when the line was closed."""
        group: list[_Job[Any]] = []
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

    def _settle(self, group: Sequence[_Job[Any]]) -> None:
        results: list[Any] = []
        for _ in range(MEETINGS):
            with _Attempt() as attempt:
                results = self._commit(group)
            if not attempt.met:
                break
        if attempt.error is None:
            for job, result in zip(group, results, strict=True):
                job.future.set_result(result)
        elif len(group) == 1 or isinstance(attempt.error, Unavailable):
            for job in group:
                job.future.set_exception(_failure(job, attempt.error))
        else:
            for job in group:
                self._settle([job])

    def _commit(self, group: Sequence[_Job[Any]]) -> list[Any]:
        if not group:
            return []
        with self._engine.begin() as connection:
            transaction = Transaction(connection)
            transaction.hold(job.run for job in group if job.run is not None)
            results = [job.work(transaction) for job in group]
            transaction.fold_all()
        return results


def _failure(job: _Job[Any], error: Exception) -> Exception:
    """What whoever waits for a job is told: that what a trainer sent cannot be stored, where that is so."""
    if job.told is None or not is_of_values(error):
        return error
    why = reason(error) if isinstance(error, DBAPIError) else str(error)
    bad = BadRecord(job.told, None, f"the database cannot hold a value of it: {why}")
    bad.__cause__ = error
    return bad
