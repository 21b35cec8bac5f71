"""Who is calling: the run, the segment and the ledger of one trainer process, made when first seen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
from scalescope.ledger import Ledger
from scalescope.wire import Hello
from sqlalchemy import Connection, Row, Select, bindparam, func, insert, select, update

from scalescope_server.store import tables
from scalescope_server.store.errors import BadRecord, Gone, Superseded
from scalescope_server.store.json_text import json_object, plain
from scalescope_server.store.merging import begin_merging
from scalescope_server.store.transaction import Transaction
from scalescope_server.store.values import Flag

# How many ranks a segment has must fit where Postgres keeps it.
MAX_RANKS = 2**31 - 1

_ranges = msgspec.msgpack.Decoder(tuple[tuple[int, int], ...])


@dataclass(frozen=True, slots=True)
class Origin:
    """One (run, segment, rank) as it is stored.

    ``first_step`` is what to add to the segment's own count of steps. ``highest_step`` and ``highest_sample``
    are on the run's axis, -1 for none: records above them cannot repeat anything. ``ended``: it said Bye.
    ``world_size``: of its segment; ``merges``: whether what the run's ranks measured is merged as well.
    ``pruned_below``: the updates before it are only kept exactly around events.
    ``connection``: the number of its last connection, 0 before the first.
    """

    run: int
    segment: int
    rank: int
    first_step: int
    ledger: Ledger
    highest_step: int
    highest_sample: int
    ended: bool
    world_size: int = 1
    merges: bool = False
    pruned_below: int = 0
    connection: int = 0


def origin_of(transaction: Transaction, hello: Hello, now: float) -> Origin:
    """The caller's rows. A run, a segment or a rank that is new is entered.

    Raises:
        BadRecord: if the Hello holds what cannot be stored.
        Gone: if the segment's run was deleted.
    """
    connection = transaction.connection
    # Another server may have entered the run since the transaction began.
    transaction.hold([hello.run])
    row = find_origin(connection, hello.run, hello.segment, hello.rank)
    if row is None or row.ranges is None or row.segment_size < world_size_of(hello):
        _enter(transaction, hello, row, now)
        row = find_origin(connection, hello.run, hello.segment, hello.rank)
    assert row is not None
    return Origin(
        row.run,
        row.segment,
        hello.rank,
        row.first_step,
        ledger_of(row.ranges),
        row.highest_step,
        row.highest_sample,
        ended=row.ending is not None,
        world_size=row.segment_size,
        merges=row.run_size > 1,
        pruned_below=row.pruned_below,
        connection=row.connection,
    )


def check_last(origin: Origin, connection: int | None) -> None:
    """Whether the caller's ``connection`` is the last of its rank. Raises :class:`Superseded` if it is not."""
    if connection is not None and connection != origin.connection:
        raise Superseded


def find_origin(connection: Connection, run: str, segment: str, rank: int) -> Row[Any] | None:
    """What is stored of a caller; columns of a segment or rank not seen yet are null. None: no such run.

    Raises:
        Gone: if the segment's run was deleted.
    """
    caller = {"run_id": run, "segment_id": segment}
    found = connection.execute(_FIND, {**caller, "of_rank": rank}).one_or_none()
    known = found is not None and found.segment is not None
    if not known and connection.execute(_DELETED, caller).one_or_none() is not None:
        raise Gone(run)
    return found


def ledger_of(ranges: bytes | None) -> Ledger:
    return Ledger(_ranges.decode(ranges)) if ranges else Ledger()


def world_size_of(hello: Hello) -> int:
    """How many ranks its segment has by what a caller says: not fewer than its own number makes of them."""
    return max(hello.world_size, hello.rank + 1)


def packed_ledger(ledger: Ledger) -> bytes:
    return msgspec.msgpack.encode(ledger.ranges)


def _enter(transaction: Transaction, hello: Hello, known: Row[Any] | None, now: float) -> None:
    if not math.isfinite(hello.started_at):
        raise BadRecord("hello", None, f"expected started_at in seconds since the epoch, got {hello.started_at}")
    if hello.rank >= MAX_RANKS:
        raise BadRecord("hello", None, f"expected a rank below {MAX_RANKS}, got {hello.rank}")
    connection = transaction.connection
    run = _enter_run(connection, hello, now) if known is None else known.run
    next_step = 0 if known is None else known.next_step
    segment = known.segment if known is not None else None
    if segment is None:
        segment = _enter_segment(connection, hello, run, next_step)
    if known is None or known.ranges is None:
        connection.execute(insert(tables.ledger), _blank_ledger(segment, hello.rank, now))
    if known is not None:
        _widen(transaction, run, segment, known.run_size, world_size_of(hello))


def _widen(transaction: Transaction, run: int, segment: int, known: int, world_size: int) -> None:
    """Let a run and its segment have so many ranks, where they had fewer. From the second rank on they are merged."""
    for table, key in ((tables.run, run), (tables.segment, segment)):
        fewer = (table.c.key == key) & (table.c.world_size < world_size)
        transaction.connection.execute(update(table).where(fewer).values(world_size=world_size))
    if known == 1 < world_size:
        transaction.fold(run)
        begin_merging(transaction.connection, run)


def _enter_run(connection: Connection, hello: Hello, now: float) -> int:
    row = {
        "id": hello.run,
        "project": hello.project,
        "name": hello.name or hello.run,
        "tags": hello.tags,
        "note": "",
        "started_at": hello.started_at,
        "last_seen_at": now,
        "attempted": 0,
        "skipped": 0,
        "scale": 0.0,
        "scale_flag": int(Flag.ABSENT),
        "last_step": -1,
        "next_step": 0,
        "length": 0,
        "levels": 1,
        "world_size": world_size_of(hello),
        **_described(hello),
    }
    return int(connection.execute(insert(tables.run).returning(tables.run.c.key), row).scalar_one())


def _enter_segment(connection: Connection, hello: Hello, run: int, first_step: int) -> int:
    count = select(func.count()).select_from(tables.segment).where(tables.segment.c.run == run)
    row = {
        "run": run,
        "id": hello.segment,
        "ordinal": connection.execute(count).scalar_one(),
        "first_step": first_step,
        "started_at": hello.started_at,
        "backward_order": "unknown",
        "world_size": world_size_of(hello),
    }
    key = connection.execute(insert(tables.segment).returning(tables.segment.c.key), row).scalar_one()
    # What the trainer says of itself is true of its newest start; name, tags and project may be the user's.
    described = {**_described(hello), "ending": None}
    connection.execute(update(tables.run).where(tables.run.c.key == run).values(described))
    return int(key)


def _described(hello: Hello) -> dict[str, Any]:
    try:
        config = json_object(hello.config)
    except ValueError as error:
        raise BadRecord("hello", None, f"config: {error}") from error
    return {
        "config": config,
        "environment": hello.environment,
        "scaler": plain(msgspec.to_builtins(hello.scaler)),
        "optimizers": plain(msgspec.to_builtins(hello.optimizers)),
        "every": hello.every,
    }


def _blank_ledger(segment: int, rank: int, now: float) -> dict[str, Any]:
    return {
        "segment": segment,
        "rank": rank,
        "ranges": packed_ledger(Ledger()),
        "duplicate": 0,
        "dropped": 0,
        "dropped_numbers": 0,
        "highest_step": -1,
        "highest_sample": -1,
        "last_seen_at": now,
    }


def seen(connection: Connection, run: int, now: float) -> None:
    """The run gave a sign of life at ``now`` by our clock."""
    connection.execute(_SEEN, {"of_run": run, "new_seen_at": now})


_SEEN = (
    update(tables.run)
    .where(tables.run.c.key == bindparam("of_run"))
    # Not the latest that was ever told: our clock may have been ahead.
    .values(last_seen_at=bindparam("new_seen_at"))
)
_DELETED = select(tables.deleted.c.run).where(
    tables.deleted.c.run == bindparam("run_id"), tables.deleted.c.segment == bindparam("segment_id")
)
_FIND: Select[Any] = (
    select(
        tables.run.c.key.label("run"),
        tables.run.c.next_step,
        tables.run.c.world_size.label("run_size"),
        tables.run.c.pruned_below,
        tables.segment.c.world_size.label("segment_size"),
        tables.segment.c.key.label("segment"),
        tables.segment.c.first_step,
        tables.ledger.c.ranges,
        tables.ledger.c.highest_step,
        tables.ledger.c.highest_sample,
        tables.ledger.c.ending,
        tables.ledger.c.connection,
    )
    .select_from(tables.run)
    .outerjoin(
        tables.segment, (tables.segment.c.run == tables.run.c.key) & (tables.segment.c.id == bindparam("segment_id"))
    )
    .outerjoin(
        tables.ledger,
        (tables.ledger.c.segment == tables.segment.c.key) & (tables.ledger.c.rank == bindparam("of_rank")),
    )
    .where(tables.run.c.id == bindparam("run_id"))
)
