"""What held of a training: the facts of its windows, and its set-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, Select, Text, and_, bindparam, cast, func, insert, or_, select

from scalescope_server.store import tables
from scalescope_server.store.cursors import packed_cursor, unpacked_cursor
from scalescope_server.store.decoding import Held
from scalescope_server.store.origin import Origin
from scalescope_server.store.records import FactsRow

MAX_FACTS = 1000


@dataclass(frozen=True, slots=True)
class Told:
    """Whose facts to read, and of which steps: [start, stop), open where None."""

    run: int
    rank: int
    start: int | None
    stop: int | None


def enter_setups(connection: Connection, origin: Origin, records: Sequence[Held]) -> None:
    """Store the set-ups of one caller."""
    rows = [
        {
            "run": origin.run,
            "rank": origin.rank,
            "step": origin.first_step + held.record.step,
            "segment": origin.segment,
            "at": held.record.at,
            "data": held.data,
        }
        for held in records
    ]
    if rows:
        connection.execute(_NEW_SETUPS, rows)


def read_facts(
    connection: Connection, told: Told, *, cursor: str | None, limit: int
) -> tuple[list[FactsRow], str | None]:
    """The windows that meet the steps, in the order of their first ones, and the cursor of the next.

    Raises:
        BadCursor: for a cursor that did not come from here.
    """
    row = tables.window.c
    limit = min(max(limit, 1), MAX_FACTS)
    query = _windows(connection, told)
    if cursor is not None:
        step, segment = unpacked_cursor(cursor, tuple[int, int])
        query = query.where(or_(row.first_step > step, and_(row.first_step == step, row.segment > segment)))
    found = connection.execute(query.limit(limit + 1)).all()
    page = found[:limit]
    after = packed_cursor((page[-1].first_step, page[-1].segment)) if len(found) > limit else None
    return [_facts(stored) for stored in page], after


def read_last_facts(connection: Connection, told: Told, end: int, most: int) -> tuple[int | None, list[FactsRow]]:
    """(None, all windows in order), or where these are more than ``most``, (since, those that meet the last ``most``
    steps before ``end``, which begin at since). ``told`` is open at both ends.
    """
    counted = select(func.count()).select_from(_of_rank(told).limit(most + 1).subquery())
    if connection.execute(counted).scalar_one() > most:
        told = replace(told, start=max(end - most, 0))
    return told.start, [_facts(stored) for stored in connection.execute(_windows(connection, told).limit(most))]


def steps_that_tell(connection: Connection, segment: int, fact: str, first: int, last: int) -> frozenset[int]:
    """Of the updates ``first`` to ``last`` of rank 0 of a segment those whose windows tell a fact of this name."""
    where = {"of_segment": segment, "start": first, "end": last, "named": f'"{fact}":'}
    spans = connection.execute(_TELLING, where).all()
    return frozenset(step for span in spans for step in range(max(span[0], first), min(span[1], last) + 1))


def read_setup(connection: Connection, told: Told) -> dict[str, Any]:
    """The set-up in force at the end of the steps; empty before the first."""
    row = tables.setup.c
    query = select(row.data).where(row.run == told.run, row.rank == told.rank)
    if told.stop is not None:
        query = query.where(row.step < told.stop)
    found = connection.execute(query.order_by(row.step.desc(), row.key.desc()).limit(1)).scalar_one_or_none()
    return dict(found or {})


def _windows(connection: Connection, told: Told) -> Select[Any]:
    """Those that meet the steps, in the order of their first ones."""
    row = tables.window.c
    query = _of_rank(told).with_only_columns(tables.window, tables.segment.c.id.label("segment_id"))
    query = query.join(tables.segment, tables.segment.c.key == row.segment)
    if told.start is not None:
        query = query.where(row.first_step >= _begun(connection, told), row.last_step >= told.start)
    if told.stop is not None:
        query = query.where(row.first_step < told.stop)
    return query.order_by(row.first_step, row.segment)


def _of_rank(told: Told) -> Select[Any]:
    row = tables.window.c
    return select(row.first_step).where(row.run == told.run, row.rank == told.rank)


def _facts(stored: Row[Any]) -> FactsRow:
    return FactsRow(
        first_step=stored.first_step,
        last_step=stored.last_step,
        segment=stored.segment_id,
        rank=stored.rank,
        facts=stored.data,
    )


def _begun(connection: Connection, told: Told) -> int:
    """Where the first window that meets the steps begins: at most one of each segment began before them."""
    found = connection.execute(_BEGUN, {"of_run": told.run, "of_rank": told.rank, "start": told.start}).scalar_one()
    return int(told.start or 0) if found is None else int(found)


_NEW_SETUPS = insert(tables.setup)
_inner = tables.window.alias("inner_window")
_latest = (
    select(func.max(_inner.c.first_step))
    .where(_inner.c.segment == tables.segment.c.key, _inner.c.rank == bindparam("of_rank"))
    .where(_inner.c.first_step <= bindparam("start"))
    .correlate(tables.segment)
    .scalar_subquery()
)
_BEGUN = (
    select(func.min(tables.window.c.first_step))
    .select_from(tables.segment)
    .join(tables.window, tables.window.c.segment == tables.segment.c.key)
    .where(tables.segment.c.run == bindparam("of_run"), tables.window.c.rank == bindparam("of_rank"))
    .where(tables.window.c.first_step == _latest, tables.window.c.last_step >= bindparam("start"))
)
_of_segment = (_inner.c.segment == bindparam("of_segment")) & (_inner.c.rank == 0)
_reaching = select(func.max(_inner.c.first_step)).where(_of_segment, _inner.c.first_step <= bindparam("start"))
_TELLING = (
    select(tables.window.c.first_step, tables.window.c.last_step)
    .where(tables.window.c.segment == bindparam("of_segment"), tables.window.c.rank == 0)
    # Those of one segment and rank do not overlap: at most one began before the steps and reaches into them.
    .where(tables.window.c.first_step >= func.coalesce(_reaching.scalar_subquery(), bindparam("start")))
    .where(tables.window.c.first_step <= bindparam("end"), tables.window.c.last_step >= bindparam("start"))
    .where(cast(tables.window.c.data, Text).contains(bindparam("named"), autoescape=False))
)
