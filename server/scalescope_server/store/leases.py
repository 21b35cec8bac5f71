"""Who judges a run: a lease that one server holds for a few seconds, renewed with each commit of the judge.

Each change of hands raises its fence. A judgement is committed together with a look at the fence, so a server that
was asleep for longer than its lease (a stopped process, a database that hung) cannot write over what its successor
has found. Time is that of the database's clock: those of the servers may differ.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, Double, Row, Select, bindparam, cast, func, select, update

from scalescope_server.store import tables
from scalescope_server.store.upsert import insert_for

# How long a run waits for a new judge when the server that judges it has died. A pass that lasts longer renews it.
TERM_S = 3.0
# A clock that is set right a little takes nobody's lease.
LONGEST_S = 2 * TERM_S

NOBODY = ""

# The Julian day of 1970-01-01.
_EPOCH_DAY = 2_440_587.5


class Lease(Struct, frozen=True):
    """As it is stored: whose it is, its fence, and until when (seconds since the epoch)."""

    holder: str
    fence: int
    until: float


class Claim(Struct, frozen=True):
    """The answer to who asks for a run: whether it is theirs, under which fence, and for how many seconds still."""

    mine: bool
    fence: int
    left_s: float


def claimed(found: Lease, holder: str, now: float) -> Lease:
    """The lease after ``holder`` has asked for it at ``now``: theirs if it was, or if its time is over."""
    if found.holder == holder:
        return Lease(holder, found.fence, now + TERM_S)
    if not _binds(found, now):
        return Lease(holder, found.fence + 1, now + TERM_S)
    return found


def _binds(found: Lease, now: float) -> bool:
    """Not once its time is over, nor where it would be of the future: then the database's clock was set back."""
    return now < found.until <= now + LONGEST_S


def claim(connection: Connection, run: int, holder: str) -> Claim:
    """Ask for a run in a write transaction."""
    # A row that is there can be locked, so of two who ask at once the second sees what the first was given.
    blank = insert_for(connection.dialect.name, tables.lease).on_conflict_do_nothing()
    connection.execute(blank, {"run": run, "holder": NOBODY, "fence": 0, "until": 0.0})
    found = _lease(connection.execute(_LOCKED, {"of_run": run}).one())
    now = clock_of(connection)
    lease = claimed(found, holder, now)
    if lease != found:
        changes = {"holder": lease.holder, "fence": lease.fence, "until": lease.until}
        connection.execute(update(tables.lease).where(tables.lease.c.run == run).values(changes))
    return Claim(lease.holder == holder, lease.fence, lease.until - now)


def renew(connection: Connection, run: int, fence: int) -> bool:
    """Whether ``fence`` is still the latest of the run, which its holder keeps for a whole term then."""
    row = tables.lease.c
    mine = update(tables.lease).where(row.run == run, row.fence == fence)
    return connection.execute(mine.values(until=clock_column(connection) + TERM_S)).rowcount == 1


def release(connection: Connection, holder: str) -> None:
    """Let others have at once what ``holder`` judges."""
    held = update(tables.lease).where(tables.lease.c.holder == holder, tables.lease.c.until > 0)
    connection.execute(held.values(until=0.0))


def standing(row: Row[Any], holder: str) -> Claim:
    """What a claim of ``holder`` would find, without making it.

    ``row``: the lease's columns, None where there is none, and the database's clock as ``now``.
    """
    found = Lease(NOBODY, 0, 0.0) if row.holder is None else _lease(row)
    return Claim(found.holder == holder or not _binds(found, row.now), found.fence, found.until - row.now)


def clock_of(connection: Connection) -> float:
    """Seconds since the epoch by the database's clock."""
    return float(connection.execute(select(clock_column(connection))).scalar_one())


def clock_column(connection: Connection) -> ColumnElement[float]:
    """Seconds since the epoch, of now and not of the transaction's begin: it may have waited for locks since."""
    if connection.dialect.name == "postgresql":
        return cast(func.extract("epoch", func.clock_timestamp()), Double)
    return (func.julianday("now") - _EPOCH_DAY) * 86_400.0


def _lease(row: Row[Any]) -> Lease:
    return Lease(row.holder, row.fence, row.until)


_FOUND: Select[Any] = select(tables.lease.c.holder, tables.lease.c.fence, tables.lease.c.until).where(
    tables.lease.c.run == bindparam("of_run")
)
_LOCKED = _FOUND.with_for_update()
