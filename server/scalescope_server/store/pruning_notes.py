"""What is remembered of updates whose exact values are removed: that they had been told, and by whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Row, bindparam, exists, func, select, update

from scalescope_server.store import tables
from scalescope_server.store.pruning_span import Gap, Whole, within
from scalescope_server.store.upsert import insert_for


def note(connection: Connection, whole: Whole, gap: Gap) -> None:
    """Enter which updates of which caller had been told, before they are removed."""
    row = tables.step.c
    told = select(row.segment, row.rank, row.step).where(*within(tables.step, whole, gap))
    for segment, rank, first, last in _stretches(connection.execute(told.order_by(row.segment, row.rank, row.step))):
        of_caller = {"of_segment": segment, "of_rank": rank}
        before = connection.execute(_ENDING, {**of_caller, "at": first - 1}).scalar_one_or_none()
        if before is None:
            entered = {"segment": segment, "rank": rank, "first_step": first, "run": whole.run, "last_step": last}
            connection.execute(tables.pruned.insert(), entered)
        else:
            connection.execute(_LONGER, {**of_caller, "of_first": before, "to": last})
    if _has_unmatched(connection, whole, gap):
        _note_measured(connection, whole, gap)


def _has_unmatched(connection: Connection, whole: Whole, gap: Gap) -> bool:
    """Whether something was measured of an update that was never told."""
    told = tables.step.c
    for table in (tables.sample, tables.tally):
        row = table.c
        same = (told.run == row.run) & (told.rank == row.rank) & (told.step == row.step) & (told.segment == row.segment)
        alone = select(row.key).where(*within(table, whole, gap), ~exists().where(same)).limit(1)
        if connection.execute(alone).first() is not None:
            return True
    return False


def _note_measured(connection: Connection, whole: Whole, gap: Gap) -> None:
    """Enter that samples are gone of updates which were never told, under no rank: these may still come."""
    segment = connection.execute(_SEGMENT, {"of_run": whole.run}).scalar_one()
    entered = {"segment": segment, "rank": tables.ALL_RANKS, "first_step": gap.first, "run": whole.run}
    new = insert_for(connection.dialect.name, tables.pruned).values(entered | {"last_step": gap.last})
    connection.execute(new.on_conflict_do_nothing())


def _stretches(found: Iterable[Row[Any]]) -> list[tuple[int, int, int, int]]:
    """(segment, rank, first step, last step) of sorted rows of (segment, rank, step)."""
    stretches: list[tuple[int, int, int, int]] = []
    for row in found:
        if stretches and stretches[-1][:2] == (row.segment, row.rank) and stretches[-1][3] == row.step - 1:
            stretches[-1] = (row.segment, row.rank, stretches[-1][2], row.step)
        else:
            stretches.append((row.segment, row.rank, row.step, row.step))
    return stretches


_SEGMENT = select(func.min(tables.segment.c.key)).where(tables.segment.c.run == bindparam("of_run"))
_gone = tables.pruned.c
_of_caller = (_gone.segment == bindparam("of_segment"), _gone.rank == bindparam("of_rank"))
_ENDING = select(_gone.first_step).where(*_of_caller, _gone.last_step == bindparam("at"))
_LONGER = (
    update(tables.pruned)
    .where(*_of_caller, _gone.first_step == bindparam("of_first"))
    .values(last_step=bindparam("to"))
)
