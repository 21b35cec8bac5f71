"""Events of a run: those of every rank as they came, or the run's own, of several ranks that tell the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from scalescope.wire import NOT_STEPPED
from sqlalchemy import Connection, Row, Select, and_, or_, select

from scalescope_server.store import tables
from scalescope_server.store.cursors import packed_cursor, unpacked_cursor
from scalescope_server.store.records import EventRow

MAX_EVENTS = 5000


@dataclass(frozen=True, slots=True)
class Asked:
    """Which events: of a ``kind``, of the steps [start, stop); None: any."""

    kind: str | None = None
    start: int | None = None
    stop: int | None = None


def read_events(
    connection: Connection, run: int, asked: Asked, *, cursor: str | None, limit: int
) -> tuple[list[EventRow], str | None]:
    """Every event of every rank, in order of the steps, and the cursor of the next ones.

    Raises:
        BadCursor: for a cursor that did not come from here.
    """
    page, after = _page(connection, _chosen(run, asked), cursor, limit)
    return [_event(stored) for stored in page], after


def read_run_events(
    connection: Connection, run: int, asked: Asked, *, cursor: str | None, limit: int
) -> tuple[list[EventRow], str | None]:
    """The same of the run: what all ranks tell of an update once, a skip with the parameter that made it.

    That is the one that :func:`read_culprits` names, whichever rank has it.
    """
    page, after = _page(connection, _chosen(run, asked).where(tables.event.c.of_run), cursor, limit)
    culprits = read_culprits(connection, run, page[0].step, page[-1].step) if page else {}
    return [_blamed(_event(stored), culprits.get(stored.step)) for stored in page], after


def read_culprits(connection: Connection, run: int, first: int, last: int) -> dict[int, str]:
    """Step -> the parameter that made it skip.

    Of those that several ranks name it is the first to be non-finite, in the order in which gradients are produced;
    where that is not known the one of the lowest rank.
    """
    row, named = tables.event.c, tables.parameter.c
    query = (
        select(row.step, row.culprit)
        .outerjoin(tables.parameter, (named.run == row.run) & (named.name == row.culprit))
        .where(row.run == run, row.kind == "skip", row.step.between(first, last), row.culprit.is_not(None))
        .order_by(named.backward.is_(None).desc(), named.backward.desc(), row.rank.desc(), row.key.desc())
    )
    return {row.step: row.culprit for row in connection.execute(query)}


def read_left_out(connection: Connection, run: int, segment: int, first: int, last: int) -> set[int]:
    """The updates whose step the loop itself left out, as rank 0 tells it."""
    row = tables.event.c
    query = (
        select(row.step, row.data)
        .where(row.run == run, row.kind == "skip", row.step.between(first, last), row.culprit.is_(None))
        .where(row.rank == 0, row.segment == segment)
    )
    return {stored.step for stored in connection.execute(query) if stored.data.get("reason") == NOT_STEPPED}


def _chosen(run: int, asked: Asked) -> Select[Any]:
    row = tables.event.c
    query = select(tables.event).where(row.run == run)
    if asked.kind is not None:
        query = query.where(row.kind == asked.kind)
    if asked.start is not None:
        query = query.where(row.step >= asked.start)
    if asked.stop is not None:
        query = query.where(row.step < asked.stop)
    return query


def _page(
    connection: Connection, query: Select[Any], cursor: str | None, limit: int
) -> tuple[Sequence[Row[Any]], str | None]:
    row, limit = tables.event.c, min(max(limit, 1), MAX_EVENTS)
    if cursor is not None:
        step, key = unpacked_cursor(cursor, tuple[int, int])
        query = query.where(or_(row.step > step, and_(row.step == step, row.key > key)))
    found = connection.execute(query.order_by(row.step, row.key).limit(limit + 1)).all()
    page = found[:limit]
    return page, packed_cursor((page[-1].step, page[-1].key)) if len(found) > limit else None


def _blamed(event: EventRow, culprit: str | None) -> EventRow:
    if event.kind != "skip" or culprit is None or event.data.get("parameter") == culprit:
        return event
    data = {name: value for name, value in event.data.items() if name != "reason"} | {"parameter": culprit}
    return msgspec.structs.replace(event, data=data)


def _event(stored: Row[Any]) -> EventRow:
    return EventRow(id=stored.key, kind=stored.kind, step=stored.step, rank=stored.rank, at=stored.at, data=stored.data)
