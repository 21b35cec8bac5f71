"""Where on a run's axis things are: its segments, its last update, how far back a window reaches, what was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, Table, bindparam, func, select, union

from scalescope_server.store import tables
from scalescope_server.store.judging import BEFORE_ALL, Position

# Rows of one read that looks for how far back a span of time reaches.
BACK_ROWS = 4096
# Within one start of a trainer its clock does not see more pass between two updates than that: it was set ahead.
LEAP_S = 86_400.0
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


def look_back(
    connection: Connection, run: int, position: Position, updates: int, seconds: float, most: int
) -> Position:
    """The position before which nothing is within ``updates`` updates or ``seconds`` of that at ``position``.

    ``most``: of updates that are within the seconds; never fewer than ``updates``.
    """
    if seconds <= 0:
        # A clock that was set back is nobody's business then.
        return _count_back(connection, run, position, updates)
    left, passed, most_left = updates, 0.0, max(updates, most)
    newer: tuple[int, float] | None = None
    for segment in reversed(segments_of(connection, run, last=position.segment)):
        upto = position.step if segment.ordinal == position.segment else END
        while rows := connection.execute(_BACK, {"of_run": run, "of_segment": segment.key, "upto": upto}).all():
            for step, at in rows:
                passed += 0.0 if newer is None else _passed(newer[1] - at, within=newer[0] == segment.ordinal)
                newer = segment.ordinal, at
                if (left <= 0 and passed > seconds) or most_left <= 0:
                    return Position(segment.ordinal, step)
                left, most_left = left - 1, most_left - 1
            upto = rows[-1].step - 1
    return BEFORE_ALL


def _passed(seconds: float, *, within: bool) -> float:
    """The time between two updates by a clock that may have been set otherwise; ``within`` one start."""
    return 0.0 if seconds < 0 or (within and seconds > LEAP_S) else seconds


def _count_back(connection: Connection, run: int, position: Position, updates: int) -> Position:
    left = updates
    for segment in reversed(segments_of(connection, run, last=position.segment)):
        upto = position.step if segment.ordinal == position.segment else END
        asked = {"of_run": run, "of_segment": segment.key, "upto": upto, "left": left}
        step = connection.execute(_NTH_BACK, asked).scalar_one_or_none()
        if step is not None:
            return Position(segment.ordinal, step)
        left -= connection.execute(_COUNT, asked).scalar_one()
    return BEFORE_ALL


def measured_steps(connection: Connection, run: int, first: int, last: int) -> dict[str, list[int]]:
    """Kind -> the steps from ``first`` to ``last`` at which any rank has told it, in order: "grad" of samples, and each
    kind of tally.
    """
    found: dict[str, list[int]] = {}
    for kind, step in connection.execute(_MEASURED, {"of_run": run, "first": first, "last": last}):
        found.setdefault(kind, []).append(step)
    return found


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
_NTH_BACK = (
    select(_step.step)
    .where(_step.run == bindparam("of_run"), _step.rank == 0, _step.segment == bindparam("of_segment"))
    .where(_step.step <= bindparam("upto"))
    .order_by(_step.step.desc())
    .limit(1)
    .offset(bindparam("left"))
)
_COUNT = (
    select(func.count())
    .select_from(tables.step)
    .where(_step.run == bindparam("of_run"), _step.rank == 0, _step.segment == bindparam("of_segment"))
    .where(_step.step <= bindparam("upto"))
)
_RANKS = (
    select(tables.ledger.c.rank)
    .join(tables.segment, _segment.key == tables.ledger.c.segment)
    .where(_segment.run == bindparam("of_run"))
)


def _steps_of(table: Table, kinds: Sequence[str]) -> Select[Any]:
    row = table.c
    # The index has kinds and ranks before the steps.
    chosen = select(row.kind, row.step).where(row.run == bindparam("of_run"), row.kind.in_(kinds), row.rank.in_(_RANKS))
    return chosen.where(row.step.between(bindparam("first"), bindparam("last")))


_MEASURED = union(
    _steps_of(tables.sample, ("grad",)), _steps_of(tables.tally, ("parameter", "module", "probe"))
).order_by("kind", "step")
