"""Jobs committed in one transaction: whom a failure concerns, and what becomes of runs that other servers hold.

A transaction either commits whole or not at all. Where it fails because of what one job brought, each of its
jobs is committed alone, so that only the faulty one fails; where the database itself fails, all of them do, and
nothing of them is stored. Where it met another server's on Postgres, it is run again.

A run that another server writes is waited for apart from all others, and not for long: that server may be frozen, and
behind this transaction are the trainers of every run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from scalescope_server.store.errors import BadRecord, Held, Unavailable
from scalescope_server.store.outages import is_meeting, is_of_room, is_of_values, is_of_waiting, outage, reason
from scalescope_server.store.transaction import Transaction

# Servers hold runs in one order and meet seldom: over a run that is new to both of them.
MEETINGS = 4
# A run that could not be had in time is not waited for again so soon: at most a tenth of the time goes into waiting.
STUCK_S = 5.0
# As long a failure is held against the database, where nobody has written since.
TROUBLE_S = 60.0
# Who waits for longer until something is stored may have more to tell that has not even come.
LATE_S = 5.0

Result = TypeVar("Result")
Work = Callable[[Transaction], Result]
Admits = Callable[[Connection], None]


@dataclass(frozen=True, slots=True, eq=False)
class Job(Generic[Result]):
    """``work`` writes to ``run`` alone; None: to none, or to what only one server writes. ``size``: bytes it holds."""

    work: Work[Result]
    run: str | None
    size: int
    # What a trainer told, whose values may be such as no database holds; None for what did not come from one.
    told: str | None = None
    future: Future[Result] = field(default_factory=Future)


Group = Sequence[Job[Any]]


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why nothing could be written. ``of_room``: the disk was full."""

    reason: str
    at: float
    of_room: bool


@dataclass(slots=True)
class _Attempt:
    """Runs a block and keeps its failure: those who wait for the result get it, not the writer's thread."""

    error: Exception | None = None
    met: bool = False
    waited: bool = False
    of_room: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self.error = outage(error) or error
            self.met = is_meeting(error)
            self.waited = is_of_waiting(error)
            self.of_room = is_of_room(error)
        return self.error is not None


class GroupCommit:
    """Commits groups of jobs. One thread; only ``trouble`` and ``stored_since`` are for others.

    ``admits`` raises :class:`Unavailable` in a transaction that must not write, ``clock`` gives seconds that only go
    forward, ``now`` those since the epoch.
    """

    def __init__(
        self,
        engine: Engine,
        admits: Admits,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._admits = admits
        self._clock = clock
        self._now = now
        self._stuck: dict[str, float] = {}
        self._trouble: _Trouble | None = None
        self._began: float | None = None
        self._stored_since = -math.inf

    def trouble(self) -> str | None:
        """Why the last write failed, for a minute or until one has shown that it is over. Any thread."""
        trouble = self._trouble
        return trouble.reason if trouble is not None and self._clock() < trouble.at + TROUBLE_S else None

    def stored_since(self) -> float:
        """Since when whatever came was stored in time, in seconds since the epoch. Any thread."""
        began = self._began
        return self._stored_since if began is None or self._now() - began <= LATE_S else self._now()

    def settle(self, group: Group) -> None:
        """Commit them together; then each of their futures has its result or its failure."""
        self._began = began = self._now()
        self._settle_all(group)
        if not 0 <= self._now() - began <= LATE_S:
            self._stored_since = self._now()
        self._began = None

    def _settle_all(self, group: Group) -> None:
        left = self._settle(group) if group else ()
        now = self._clock()
        waiting = [job for job in left if self._stuck.get(job.run or "", 0.0) <= now]
        held = [job for job in left if self._stuck.get(job.run or "", 0.0) > now]
        if waiting:
            held += self._settle_waiting(waiting)
        for job in held:
            job.future.set_exception(Held(job.run or ""))

    def _settle_waiting(self, group: Group) -> Group:
        """Wait for their runs; those of which other servers have not let go are left, the others settled."""
        if not (left := self._settle(group, wait=True)):
            return ()
        left = self._settle(left)
        now = self._clock()
        self._stuck = {run: ends for run, ends in self._stuck.items() if ends > now}
        self._stuck |= {job.run: now + STUCK_S for job in left if job.run is not None}
        return left

    def _settle(self, group: Group, *, wait: bool = False) -> Group:
        """Those whose runs could not be had; all others have their results or their failures.

        Without ``wait`` these are the runs that another server holds, or that are not there yet; with it all of them,
        or none.
        """
        done: list[tuple[Job[Any], Any]] = []
        for _ in range(MEETINGS):
            with _Attempt() as attempt:
                done = self._commit(group, wait=wait)
            if not attempt.met:
                break
        if attempt.error is None:
            self._note_success(done)
            for job, result in done:
                job.future.set_result(result)
            settled = {id(job) for job, _ in done}
            return [job for job in group if id(job) not in settled]
        if wait and attempt.waited:
            return group
        if isinstance(attempt.error, Unavailable):
            self._trouble = _Trouble(str(attempt.error), self._clock(), attempt.of_room)
            self._stored_since = self._now()
        self._settle_failed(group, attempt.error)
        return ()

    def _settle_failed(self, group: Group, error: Exception) -> None:
        if len(group) == 1 or isinstance(error, Unavailable):
            for job in group:
                job.future.set_exception(_failure(job, error))
        else:
            for job in group:
                self._settle_all([job])

    def _note_success(self, done: Sequence[tuple[Job[Any], Any]]) -> None:
        trouble = self._trouble
        stored = any(job.told == "batch" for job, _ in done)
        # A touch is so small that it says nothing about a disk that was full.
        touched = any(job.work is touch for job, _ in done) and trouble is not None and not trouble.of_room
        if stored or touched:
            self._trouble = None

    def _commit(self, group: Group, *, wait: bool) -> list[tuple[Job[Any], Any]]:
        """What was done of it, with the results."""
        with self._engine.begin() as connection:
            self._admits(connection)
            transaction = Transaction(connection)
            runs = {job.run for job in group if job.run is not None}
            if wait:
                transaction.hold(runs, shortly=True)
            had = runs if wait else transaction.hold_free(runs)
            results = [(job, job.work(transaction)) for job in group if job.run is None or job.run in had]
            transaction.fold_all()
        return results


def touch(transaction: Transaction) -> None:
    """Write something that changes nothing."""
    transaction.connection.execute(_TOUCH)


def _failure(job: Job[Any], error: Exception) -> Exception:
    """What whoever waits for a job is told: that what a trainer sent cannot be stored, where that is so."""
    if job.told is None or not is_of_values(error):
        return error
    why = reason(error) if isinstance(error, DBAPIError) else str(error)
    bad = BadRecord(job.told, None, f"the database cannot hold a value of it: {why}")
    bad.__cause__ = error
    return bad


_TOUCH = text("UPDATE alembic_version SET version_num = version_num")
