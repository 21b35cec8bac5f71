"""Where on a run's axis things are: its segments, its last update, how far back a window reaches, what was sampled."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.judging import BEFORE_ALL, Position

# Rows of one read that looks for how far back a span of time reaches.
BACK_ROWS = 4096
# Beyond any step, and any segment.
END = 2**62
MOST_SEGMENTS = 2**31 - 1


def segments_of(connection: Connection, run: int, first: int = 0, last: int = MOST_SEGMENTS) -> list[Row[Any]]:
    """(key, ordinal) of the segments from ``first`` to ``last``, in order."""
    return list(connection.execute(_SEGMENTS, {"of_run": run, "first": first, "last": last}))


def last_position(connection: Connection, run: int) -> Position:
    """Of the last stored update of rank 0."""
    for segment in reversed(segments_of(connection, run)):
        row = connection.execute(_LAST, {"of_run": run, "of_segment": segment.key}).one_or_none()
        if row is not None:
            return Position(segment.ordinal, row.step)
    return BEFORE_ALL


def look_back(connection: Connection, run: int, position: Position, updates: int, seconds: float) -> Position:
    """The position before which nothing is within ``updates`` updates or ``seconds`` of that at ``position``."""
    left, latest = updates, None
    for segment in reversed(segments_of(connection, run, last=position.segment)):
        upto = position.step if segment.ordinal == position.segment else END
        while rows := connection.execute(_BACK, {"of_run": run, "of_segment": segment.key, "upto": upto}).all():
            latest = rows[0].at if latest is None else latest
            for step, at in rows:
                if left <= 0 and not at >= latest - seconds:
                    return Position(segment.ordinal, step)
                left -= 1
            upto = rows[-1].step - 1
    return BEFORE_ALL


def sampled_steps(connection: Connection, run: int, first: int, last: int) -> list[int]:
    """The steps from ``first`` to ``last`` at which any rank has sampled its gradients."""
    return list(connection.execute(_SAMPLED, {"of_run": run, "first": first, "last": last}).scalars())


def tallied_steps(connection: Connection, run: int, kind: str, first: int, last: int) -> list[int]:
    """The steps from ``first`` to ``last`` at which any rank has told tallies of this kind."""
    return list(connection.execute(_TALLIED, {"of_run": run, "of_kind": kind, "first": first, "last": last}).scalars())


_segment, _step = tables.segment.c, tables.step.c
_SEGMENTS = (
    select(_segment.key, _segment.ordinal)
    .where(_segment.run == bindparam("of_run"), _segment.ordinal.between(bindparam("first"), bindparam("last")))
    .order_by(_segment.ordinal)
)
_UPDATES = (
    select(_step.step, _step.at)
    .where(_step.run == bindparam("of_run"), _step.rank == 0, _step.segment == bindparam("of_segment"))
    .order_by(_step.step.desc())
)
_LAST = _UPDATES.limit(1)
_BACK = _UPDATES.where(_step.step <= bindparam("upto")).limit(BACK_ROWS)
_RANKS = (
    select(tables.ledger.c.rank)
    .join(tables.segment, _segment.key == tables.ledger.c.segment)
    .where(_segment.run == bindparam("of_run"))
)


def _steps_with(table: Table, kind: ColumnElement[bool]) -> Select[Any]:
    row = table.c
    # The index has kinds and ranks before the steps.
    chosen = select(row.step).where(row.run == bindparam("of_run"), kind, row.rank.in_(_RANKS))
    return chosen.where(row.step.between(bindparam("first"), bindparam("last"))).distinct().order_by(row.step)


_SAMPLED = _steps_with(tables.sample, tables.sample.c.kind == "grad")
_TALLIED = _steps_with(tables.tally, tables.tally.c.kind == bindparam("of_kind"))
