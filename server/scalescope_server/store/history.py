"""Events, steps and findings of a run, as they were stored."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, and_, or_, select

from scalescope_server.store import tables
from scalescope_server.store.cursors import packed_cursor, unpacked_cursor
from scalescope_server.store.judging import Position, StepRow
from scalescope_server.store.records import EventRow, FindingRow, RunId
from scalescope_server.store.runs import SEVERITIES

MAX_EVENTS = 5000


def read_events(
    connection: Connection,
    run: int,
    *,
    kind: str | None,
    start: int | None,
    stop: int | None,
    cursor: str | None,
    limit: int,
) -> tuple[list[EventRow], str | None]:
    """Every event of the steps [start, stop), in order, and the cursor of the next ones.

    Raises:
        BadCursor: for a cursor that did not come from here.
    """
    row = tables.event.c
    limit = min(max(limit, 1), MAX_EVENTS)
    query = select(tables.event).where(row.run == run)
    if kind is not None:
        query = query.where(row.kind == kind)
    if start is not None:
        query = query.where(row.step >= start)
    if stop is not None:
        query = query.where(row.step < stop)
    if cursor is not None:
        step, key = unpacked_cursor(cursor, tuple[int, int])
        query = query.where(or_(row.step > step, and_(row.step == step, row.key > key)))
    found = connection.execute(query.order_by(row.step, row.key).limit(limit + 1)).all()
    page = found[:limit]
    after = packed_cursor((page[-1].step, page[-1].key)) if len(found) > limit else None
    return [_event(stored) for stored in page], after


def steps_after(connection: Connection, run: int, after: Position, limit: int) -> list[StepRow]:
    """At most ``limit`` updates of rank 0 beyond ``after``: segment by segment, in order within each."""
    of_segment = tables.segment.c
    query = select(of_segment.key, of_segment.ordinal).where(of_segment.run == run, of_segment.ordinal >= after.segment)
    rows: list[StepRow] = []
    for segment in connection.execute(query.order_by(of_segment.ordinal)).all():
        beyond = after.step if segment.ordinal == after.segment else -1
        rows += _steps_of(connection, run, segment.key, segment.ordinal, beyond, limit - len(rows))
    return rows


def _steps_of(connection: Connection, run: int, segment: int, ordinal: int, beyond: int, limit: int) -> list[StepRow]:
    row = tables.step.c
    query = (
        select(row.step, row.scale, row.skipped, row.growth_tracker)
        .where(row.run == run, row.rank == 0, row.step > beyond, row.segment == segment)
        .order_by(row.step)
        .limit(limit)
    )
    found = connection.execute(query).all()
    culprits = _culprits(connection, run, found[0].step, found[-1].step) if found else {}
    return [
        StepRow(
            step=stored.step,
            segment=ordinal,
            scale=stored.scale,
            skipped=bool(stored.skipped),
            growth_tracker=stored.growth_tracker,
            culprit=culprits.get(stored.step),
        )
        for stored in found
    ]


def read_findings(connection: Connection, run: int) -> list[FindingRow]:
    """Worst first, then newest first."""
    stored = connection.execute(select(tables.finding).where(tables.finding.c.run == run)).all()
    found = [_finding(row) for row in stored]
    return sorted(found, key=lambda f: (-SEVERITIES.index(f.severity), -f.first_step))


def read_judgement(connection: Connection, run: int) -> tuple[int, bytes]:
    """(how many updates are judged, state) of the judge; 0 and empty before its first pass."""
    row = tables.judgement.c
    found = connection.execute(select(row.updates, row.state).where(row.run == run)).one_or_none()
    return (0, b"") if found is None else (found.updates, found.state)


def unjudged(connection: Connection) -> list[RunId]:
    """Runs of which more or other updates are stored than are judged."""
    run, row = tables.run.c, tables.judgement.c
    query = (
        select(run.id)
        .outerjoin(tables.judgement, row.run == run.key)
        .where(run.attempted > 0, or_(row.updates.is_(None), row.updates != run.attempted))
    )
    return [RunId(found) for found in connection.execute(query).scalars()]


def _culprits(connection: Connection, run: int, first: int, last: int) -> dict[int, str]:
    """Step -> the parameter that its skip named; the lowest rank that knows one is heard."""
    row = tables.event.c
    query = (
        select(row.step, row.culprit)
        .where(row.run == run, row.kind == "skip", row.step.between(first, last), row.culprit.is_not(None))
        .order_by(row.rank.desc(), row.key.desc())
    )
    return {row.step: row.culprit for row in connection.execute(query)}


def _event(stored: Row[Any]) -> EventRow:
    return EventRow(id=stored.key, kind=stored.kind, step=stored.step, rank=stored.rank, at=stored.at, data=stored.data)


def _finding(stored: Row[Any]) -> FindingRow:
    return FindingRow(**{name: getattr(stored, name) for name in FindingRow.__struct_fields__})
