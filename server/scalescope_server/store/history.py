"""Steps and findings of a run, as they were stored."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, exists, func, or_, select

from scalescope_server.store import tables
from scalescope_server.store.events import read_culprits, read_left_out
from scalescope_server.store.facts import steps_that_tell
from scalescope_server.store.judging import Position, StepRow
from scalescope_server.store.records import FindingRow, RunId
from scalescope_server.store.runs import SEVERITIES
from scalescope_server.store.tables import STEP_COLUMNS
from scalescope_server.store.values import FLAG_BITS, FLAG_MASK


def steps_after(
    connection: Connection, run: int, after: Position, limit: int, silent_before: float
) -> tuple[list[StepRow], int]:
    """At most ``limit`` updates of rank 0 beyond ``after``: segment by segment, in order within each; and how many
    there are beyond these that have to wait.

    Which of several ranks knows what made an update skip, shows once all have told it. So a skipped update, and what
    follows it, waits for those that are alive (seen since ``silent_before``) and have not come so far.
    """
    of_segment = tables.segment.c
    query = select(of_segment.key, of_segment.ordinal).where(of_segment.run == run, of_segment.ordinal >= after.segment)
    rows: list[StepRow] = []
    for segment in connection.execute(query.order_by(of_segment.ordinal)).all():
        beyond = after.step if segment.ordinal == after.segment else -1
        some = _steps_of(connection, run, segment.key, segment.ordinal, beyond, limit - len(rows))
        told = told_by_all(connection, segment.key, silent_before)
        ends = next((i for i, row in enumerate(some) if told is not None and row.skipped and row.step > told), None)
        rows += some[:ends]
        if ends is not None:
            return rows, _count_from(connection, run, segment.ordinal, segment.key, some[ends].step)
    return rows, 0


def told_by_all(connection: Connection, segment: int, silent_before: float) -> int | None:
    """The last update that all ranks of the segment have told which still tell any; None where it is rank 0 alone."""
    row = tables.ledger.c
    others = (
        select(func.min(row.highest_step))
        .where(row.segment == segment, row.rank > 0, row.ending.is_(None))
        .where(row.last_seen_at >= silent_before)
    )
    found: int | None = connection.execute(others).scalar_one()
    return found


def _count_from(connection: Connection, run: int, ordinal: int, segment: int, step: int) -> int:
    """The updates of rank 0 from ``step`` of a segment on, and in all later ones."""
    row, of_segment = tables.step.c, tables.segment.c
    later = select(of_segment.key, of_segment.first_step).where(of_segment.run == run, of_segment.ordinal > ordinal)
    firsts = {found.key: found.first_step for found in connection.execute(later)} | {segment: step}
    here = (row.run == run) & (row.rank == 0) & (row.step >= min(firsts.values()))
    counted = select(func.count()).where(
        here, or_(*((row.segment == key) & (row.step >= at) for key, at in firsts.items()))
    )
    return int(connection.execute(counted).scalar_one())


def _steps_of(connection: Connection, run: int, segment: int, ordinal: int, beyond: int, limit: int) -> list[StepRow]:
    row = tables.step.c
    query = (
        select(row.step, row.scale, row.skipped, row.growth_tracker, row.nonfinite)
        .where(row.run == run, row.rank == 0, row.step > beyond, row.segment == segment)
        .order_by(row.step)
        .limit(limit)
    )
    found = connection.execute(query).all()
    if not found:
        return []
    culprits = read_culprits(connection, run, found[0].step, found[-1].step)
    left_out: set[int] = set()
    if any(stored.skipped for stored in found):
        left_out = read_left_out(connection, run, segment, found[0].step, found[-1].step) - culprits.keys()
    recreated = steps_that_tell(connection, segment, "scaler_recreated", found[0].step, found[-1].step)
    return [
        StepRow(
            step=stored.step,
            segment=ordinal,
            scale=stored.scale,
            skipped=bool(stored.skipped) and stored.step not in left_out,
            growth_tracker=stored.growth_tracker,
            culprit=culprits.get(stored.step),
            recreated=stored.step in recreated,
            left_out=stored.step in left_out,
            broken=bool(stored.nonfinite & _LOSS_FLAG),
        )
        for stored in found
    ]


_LOSS_FLAG = FLAG_MASK << FLAG_BITS * STEP_COLUMNS.index("loss")


def read_findings(connection: Connection, run: int) -> list[FindingRow]:
    """Worst first; of those that are as bad, what began first, which is nearer to the cause."""
    stored = connection.execute(select(tables.finding).where(tables.finding.c.run == run)).all()
    found = [_finding(row) for row in stored]
    return sorted(found, key=lambda f: (-SEVERITIES.index(f.severity), f.first_step))


def read_judgement(connection: Connection, run: int) -> tuple[int, bytes]:
    """(how many updates are judged, state) of the judge; 0 and empty before its first pass."""
    row = tables.judgement.c
    found = connection.execute(select(row.updates, row.state).where(row.run == run)).one_or_none()
    return (0, b"") if found is None else (found.updates, found.state)


def unjudged(connection: Connection) -> list[RunId]:
    """Runs of which more or other updates are stored than are judged, or to which rules have not come so far, or with
    which what fires is to end.
    """
    run, row = tables.run.c, tables.judgement.c
    is_left = or_(row.updates.is_(None), row.updates != run.attempted, row.rules_step < run.last_step, is_to_end())
    query = (
        select(run.id).outerjoin(tables.judgement, row.run == run.key).where(~run.doomed, run.attempted > 0, is_left)
    )
    return [RunId(found) for found in connection.execute(query).scalars()]


def is_to_end() -> ColumnElement[bool]:
    """Of a row of ``run``: it has finished, and something fires on it still."""
    alert = tables.alert.c
    fires = exists().where(alert.run == tables.run.c.key, alert.is_open).correlate(tables.run)
    return and_(tables.run.c.ending == "finished", fires)


def _finding(stored: Row[Any]) -> FindingRow:
    return FindingRow(**{name: getattr(stored, name) for name in FindingRow.__struct_fields__})
