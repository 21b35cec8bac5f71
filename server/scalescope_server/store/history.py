"""Events, steps and findings of a run, as they were stored."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, and_, or_, select

from scalescope_server.store import tables
from scalescope_server.store.cursors import packed_cursor, unpacked_cursor
from scalescope_server.store.records import EventRow, FindingRow, RunId, StepRow
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


def steps_after(connection: Connection, run: int, watermark: int, limit: int) -> list[StepRow]:
    """At most ``limit`` updates of rank 0 beyond ``watermark``, in order."""
    row, of_segment = tables.step.c, tables.segment.c
    query = (
        select(row.step, of_segment.ordinal, row.scale, row.skipped, row.growth_tracker)
        .join(tables.segment, of_segment.key == row.segment)
        .where(row.run == run, row.rank == 0, row.step > watermark)
        .order_by(row.step, row.segment)
        .limit(limit)
    )
    found = connection.execute(query).all()
    culprits = _culprits(connection, run, found[0].step, found[-1].step) if found else {}
    return [
        StepRow(
            step=stored.step,
            segment=stored.ordinal,
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
    """(watermark, state) of the judge; -1 and empty before its first pass."""
    row = tables.judgement.c
    found = connection.execute(select(row.watermark, row.state).where(row.run == run)).one_or_none()
    return (-1, b"") if found is None else (found.watermark, found.state)


def unjudged(connection: Connection) -> list[RunId]:
    """Runs with updates beyond their watermark."""
    run, row = tables.run.c, tables.judgement.c
    query = (
        select(run.id)
        .outerjoin(tables.judgement, row.run == run.key)
        .where(run.last_step >= 0, or_(row.watermark.is_(None), row.watermark < run.last_step))
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
