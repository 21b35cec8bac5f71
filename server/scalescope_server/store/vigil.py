"""How a run stands for who watches it: its names, its state, how far it is judged, when its last update came."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, Row, exists, or_, select

from scalescope_server.store import tables
from scalescope_server.store.judging import BEFORE_ALL, Position
from scalescope_server.store.records import RunId, RunState
from scalescope_server.store.rules import read_revision
from scalescope_server.store.runs import state_of
from scalescope_server.store.ticks import last_position
from scalescope_server.store.values import scale_of

# States of an alert that end by time alone.
_WAITING = ("pending", "recovering")


class Vigil(Struct, frozen=True, kw_only=True):
    """``revision``: of the rule book. ``position``: the last update at which rules were evaluated.

    ``last_update_at``: when the run's last update came, by our clock as far as that is known; None before the first,
    then ``started_at`` (by our clock too) says since when it could have come. ``newest``: the last stored update.
    """

    run: RunId
    name: str
    project: str
    tags: tuple[str, ...]
    state: RunState
    scale: float | None
    revision: int
    position: Position
    newest: Position
    last_update_at: float | None
    started_at: float


def read_vigil(connection: Connection, run: Row[Any], silent_before: float) -> Vigil:
    """The vigil over a row of ``run``."""
    row = tables.judgement.c
    query = select(row.updates, row.rules_segment, row.rules_step).where(row.run == run.key)
    judged = connection.execute(query).one_or_none()
    newest = last_position(connection, run.key)
    return Vigil(
        run=RunId(run.id),
        name=run.name,
        project=run.project,
        tags=tuple(run.tags),
        state=state_of(run, silent_before),
        scale=scale_of(run.scale, run.scale_flag),
        revision=read_revision(connection),
        position=_position(judged, newest),
        newest=newest,
        last_update_at=_last_update_at(connection, run),
        started_at=run.started_at,
    )


def _position(judged: Row[Any, Any, Any] | None, newest: Position) -> Position:
    if judged is None:
        return BEFORE_ALL
    if judged.rules_segment is not None:
        return Position(judged.rules_segment, judged.rules_step)
    # Judged when there were no rules: they say nothing of the past.
    return newest


def _last_update_at(connection: Connection, run: Row[Any]) -> float | None:
    """As the last heartbeat of rank 0 tells, unless an update has come since: then when it was last seen."""
    row, of_segment = tables.ledger.c, tables.segment.c
    query = (
        select(row.progress_at, row.progress_step, row.last_seen_at, row.highest_step)
        .join(tables.segment, of_segment.key == row.segment)
        .where(of_segment.run == run.key, row.rank == 0, row.highest_step >= 0)
        .order_by(of_segment.ordinal.desc())
        .limit(1)
    )
    found = connection.execute(query).one_or_none()
    if found is None:
        return None
    is_told = found.progress_at is not None and (found.progress_step or 0) >= found.highest_step
    return float(found.progress_at if is_told else found.last_seen_at)


def read_to_watch(connection: Connection, seen_since: float) -> list[RunId]:
    """Runs of which time alone may change an alert: not ended and seen since then, or with one that waits."""
    row = tables.run.c
    waiting = exists().where(tables.alert.c.run == row.key, tables.alert.c.state.in_(_WAITING))
    query = select(row.id).where(~row.doomed, or_(row.ending.is_(None) & (row.last_seen_at >= seen_since), waiting))
    return [RunId(found) for found in connection.execute(query).scalars()]
